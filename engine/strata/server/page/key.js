// Asks for the API key where the server wants one.
const element = (id) => document.getElementById(id);

export class KeyDialog {
  // onKey: after the key has changed.
  constructor(api, onKey) {
    this.api = api;
    this.dialog = element("key-dialog");
    element("key-open").addEventListener("click", () => this.ask(""));
    element("key-close").addEventListener("click", () => this.dialog.close());
    const use = (key) => {
      api.key = key;
      this.dialog.close();
      onKey();
    };
    element("key-forget").addEventListener("click", () => use(""));
    element("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      use(element("key").value.trim());
    });
    this.dialog.addEventListener("close", () => element("prompt").focus());
  }

  ask(reason) {
    element("key-open").hidden = false;
    element("key-reason").textContent = reason;
    element("key").value = "";
    element("key-forget").hidden = !this.api.key;
    if (!this.dialog.open) this.dialog.showModal();
    element("key").focus();
  }
}
