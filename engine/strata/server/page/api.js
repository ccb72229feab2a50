// Requests to the server, errors in words, and streams event by event.

const KEY = "strata-api-key"; // in sessionStorage: gone with the tab

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Api {
  onRefused = () => {}; // the server asks for a key, or for another one

  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(key) {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  }

  // The answer to a request; an ApiError where there is none, or none that says 200.
  async ask(path, { body, signal } = {}) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error.name === "TimeoutError") throw new ApiError("The server does not answer.");
      throw new ApiError("The server cannot be reached.");
    }
    if (response.ok) return response;
    const refused = response.status === 401;
    const message = refused && !this.key ? "The server asks for an API key." : await words(response);
    const error = new ApiError(message, response.status);
    if (refused) this.onRefused(error);
    throw error;
  }

  async status() {
    return (await this.ask("v1/status", { signal: AbortSignal.timeout(10_000) })).json();
  }

  // The chunks of a chat's stream, one after the other.
  async *chat(body, signal) {
    const response = await this.ask("v1/chat/completions", { body: { ...body, stream: true }, signal });
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(sentence(chunk.error.message));
      yield chunk;
    }
    throw new ApiError("The connection ended before the answer did.");
  }
}

// The data of server-sent events.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection broke before the answer ended.");
  }
}

async function words(response) {
  let message = `the server, or what stands before it, answered ${response.status} ${response.statusText}`.trim();
  try {
    message = (await response.json()).error.message;
  } catch {
    // no error object: a proxy's answer
  }
  const seconds = response.headers.get("retry-after");
  return sentence(message) + (seconds ? ` Try again in ${seconds} s.` : "");
}

function sentence(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
