// Images that may not belong: the kinds of problems.csv in words, and the slider of their threshold.
import { decimal, make } from "./dom.js";

/**
 * What a kind is called, what its value means, and how that is written.
 * @type {Record<string, {title: string, why: string, value: (value: number) => string}>}
 */
export const KINDS = {
  exact_copy: { title: "Exact copies", why: "The same pixels, in files of any name.", value: () => "same pixels" },
  near_copy: {
    title: "Near copies", why: "Resized, recompressed or slightly cropped, a moment later, or blurred. Each is like the first of its group.",
    value: (value) => `${decimal(value)} alike`,
  },
  dark: { title: "Dark", why: "Hardly any part is brighter than black.", value: (value) => `brightest part ${decimal(value)}` },
  bright: { title: "Bright", why: "Hardly any part is darker than white.", value: (value) => `darkest part ${decimal(value)}` },
  blurred: { title: "Blurred", why: "Even the sharpest edges are soft.", value: (value) => `sharpness ${decimal(value, 3)}` },
  blank: { title: "Blank", why: "One colour.", value: (value) => `contrast ${decimal(value, 3)}` },
  tiny: { title: "Tiny", why: "Much smaller than the others.", value: (value) => `${Math.round(value)} pixels` },
  screenshot: { title: "Screenshots", why: "Straight, strong edges on flat areas of few colours.", value: (value) => `${decimal(value)} like a screen` },
  odd: { title: "Odd ones", why: "Far from every other image, by the features.", value: (value) => `${decimal(value, 1)} deviations` },
};

/**
 * A slider that makes a threshold stricter than it was. `act` gets a function that says whether a value passes; the first
 * call is made at once. Null where all values are equal.
 * @param {string} label
 * @param {number[]} values
 * @param {boolean} rising  whether large values are suspicious
 * @param {(passes: (value: number) => boolean) => unknown} act
 */
export function threshold(label, values, rising, act) {
  const sorted = [...values].sort((one, other) => (rising ? one - other : other - one)); // the least suspicious first
  const [least, most] = [sorted[0], sorted[sorted.length - 1]];
  if (least === most) {
    act(() => true);
    return null;
  }
  const slider = make("input", { type: "range", min: 0, max: sorted.length - 1, value: 0, "aria-label": label });
  const draw = () => {
    const bound = sorted[Number(slider.value)];
    act((value) => (rising ? value >= bound : value <= bound));
  };
  slider.addEventListener("input", draw);
  draw();
  return make("label", { class: "row threshold" }, make("span", { class: "note", text: "Only the clearest" }), slider);
}
