// Runs before each expression. The engine looks at its clock only between steps of the language: what a built-in
// function does in one go must therefore be bounded, and counted as the steps that it takes.
(() => {
  "use strict";
  const { isArray } = Array;
  const { apply, ownKeys, defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Reflect;
  const MOST_ITEMS = 262144;
  const STEPS = 32;

  const size = (value) => {
    if (typeof value === "string") return value.length;
    if (typeof value === "number") return value > 0 && value < 16777216 ? value : 0;
    if (!isArray(value)) return 0;
    if (value.length > MOST_ITEMS) throw new RangeError("an array has more than " + MOST_ITEMS + " items");
    return value.length;
  };
  const counted = (name, native, takes) =>
    ({
      [name](...given) {
        if (!takes(this)) throw new TypeError(name + " is for arrays");
        let work = size(this);
        // Not `of`: the iterator of arrays is counted, too.
        for (let at = 0; at < given.length; at += 1) work += size(given[at]);
        for (let step = work / STEPS; step > 0; step -= 1);
        return apply(native, this, given);
      },
    })[name];
  const count = (holder, takes) => {
    const keys = ownKeys(holder);
    for (let at = 0; at < keys.length; at += 1) {
      const key = keys[at];
      const property = getOwnPropertyDescriptor(holder, key);
      if (key === "constructor" || typeof property.value !== "function") continue;
      property.value = counted(key, property.value, takes);
      defineProperty(holder, key, property);
    }
  };
  const any = () => true;
  count(Array.prototype, isArray);
  for (const holder of [String.prototype, Array, String, Object, JSON, RegExp.prototype]) count(holder, any);

  // No code out of text: what is run is what was read.
  for (const made of [function () {}, function* () {}, async function () {}, async function* () {}]) {
    defineProperty(getPrototypeOf(made), "constructor", { value: undefined });
  }
  for (const name of ["eval", "Function", "Iterator", "BigInt", "globalThis"]) delete globalThis[name];
})();
