// What every module builds elements with: Preact, its hooks, and htm instead of a build step.
// All text goes through Preact's children, which are text nodes: nothing here, or anywhere, writes markup from data.
import { Component, Fragment, createContext, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export * from "./vendor/hooks.js";
export { Fragment, createContext, h, render };
export const html = htm.bind(h);

/** A component that is drawn again only when one of its props is another: patches leave the rest as it was. */
export function memo(component) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const before = this.props;
      return Object.keys(next).some((key) => next[key] !== before[key]) || Object.keys(before).some((key) => !(key in next));
    }

    render(props) {
      return h(component, props);
    }
  };
}
