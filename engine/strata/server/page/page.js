// Puts the page together: who asks the server, the chat, and the live view.
import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { KeyDialog } from "./key.js";
import { Live } from "./live.js";

const api = new Api();
const chat = new Chat(api);
const live = new Live(api, (status) => chat.showModels(status.models));
const keys = new KeyDialog(api, () => live.resume());
api.onRefused = (error) => keys.ask(error.message);
live.resume();
