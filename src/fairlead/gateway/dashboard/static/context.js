// What every page needs: who looks, the socket, a way to ask before acting, and a way to say what happened.
import { createContext, useContext } from "./html.js";

export const Context = createContext(null);

/** `{session, live, ask, say}` */
export const useApp = () => useContext(Context);

/** Operators and those who only look see the whole line; keys of users and services see jobs and batches. */
export const seesAll = (session) => session.role === "admin" || session.role === "viewer";

/** Whether to offer what changes the line for everybody. */
export const mayOperate = (session) => session.may_act && session.role === "admin";
