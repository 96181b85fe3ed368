// A value that components watch. It holds what outlives a page: the session, the live samples, the view.

import { useEffect, useRef, useState } from "./vendor/htm-preact.js";

export function createStore(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      if (next === value) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

export function useStore(store) {
  const [value, setValue] = useState(store.get());
  useEffect(() => {
    setValue(store.get());
    return store.watch(setValue);
  }, [store]);
  return value;
}

/** What a field has, and how to set it: `value`, and anew when its `key` becomes another. What is typed meanwhile stays. */
export function useTyped(value, key = value) {
  const [typed, setTyped] = useState(value);
  const told = useRef(key);
  useEffect(() => {
    if (key !== told.current) setTyped(value);
    told.current = key;
  }, [key]);
  return [typed, setTyped];
}
