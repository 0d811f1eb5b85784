// What every page needs: who looks, the socket, a way to ask before acting, and a way to say what happened.
import { createContext, useContext } from "./html.js";

export const Context = createContext(null);

/** `{session, live, ask, say}` */
export const useApp = () => useContext(Context);

/** Who sees what, as the gateway has it: a user's key only its own jobs and batches, a service's the line too. */
const SIGHT = {
  own: () => true,
  line: ({ role }) => role === "admin" || role === "viewer" || role === "service",
  all: ({ role }) => role === "admin" || role === "viewer",
};

export const sees = (session, what) => SIGHT[what](session);

/** Whether to offer what changes the line for everybody. */
export const mayOperate = (session) => session.may_act && session.role === "admin";
