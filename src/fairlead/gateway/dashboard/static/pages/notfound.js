import { html } from "../html.js";
import { to } from "../router.js";

export const Page = () => html`<h1>Page not found</h1>
  <p>The page does not exist, or your key may not see it. <a href=${to([])}>Go to the home page</a>.</p>`;
