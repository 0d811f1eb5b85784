import { html } from "../html.js";
import { to } from "../router.js";

export const Page = () => html`<h1>There is no such page</h1>
  <p>The address leads nowhere, or to something that your key may not see. <a href=${to([])}>Go to the start</a>.</p>`;
