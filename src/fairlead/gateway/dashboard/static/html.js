// Element building for all modules: Preact, its hooks, and htm instead of a build step.
// All text becomes text nodes through Preact's children: no module writes markup from data.
import { Component, Fragment, createContext, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export * from "./vendor/hooks.js";
export { Fragment, createContext, h, render };
export const html = htm.bind(h);

/** A component that renders again only when a prop changes: patches keep the identity of unchanged objects. */
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
