// Talks to a server through OpenAI's client, and prints as JSON what came of it: node client.cjs http://HOST:PORT/v1
const OpenAI = require("openai");

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const question = { role: "user", content: "How is the weather in Oslo?" };
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
};
const tool = { type: "function", name: "weather", description: "The weather.", parameters, strict: true };

/** A streamed chat whose call the client runs itself, until there is an answer. */
async function runTools() {
  const called = [];
  const run = (place) => (called.push(place), "7 °C");
  const runner = client.chat.completions.runTools({
    model: "tiny",
    messages: [question],
    stream: true,
    tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: run } }],
  });
  const answer = await runner.finalContent();
  return { called, answer };
}

async function parseAnswer() {
  const completion = await client.chat.completions.parse({
    model: "tiny",
    messages: [question],
    response_format: { type: "json_schema", json_schema: { name: "place", schema: parameters, strict: true } },
  });
  return JSON.parse(completion.choices[0].message.content);
}

async function followResponse() {
  const kinds = new Set();
  const stream = client.responses.stream({ model: "tiny", input: question.content, tools: [tool] });
  for await (const event of stream) kinds.add(event.type);
  const response = await stream.finalResponse();
  const call = response.output.find((item) => item.type === "function_call");
  return { kinds: [...kinds], text: response.output_text, arguments: JSON.parse(call.arguments) };
}

async function refused() {
  try {
    await client.responses.create({ model: "tiny", input: "hello", store: true });
  } catch (error) {
    return { name: error.constructor.name, status: error.status, param: error.param };
  }
}

async function main() {
  const results = {};
  for (const step of [runTools, parseAnswer, followResponse, refused]) results[step.name] = await step();
  console.log(JSON.stringify(results));
}

main();
