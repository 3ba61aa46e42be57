// Only types that browsers decode as pixels; an SVG is a document.
const PIXELS = /^image\/(png|jpeg|gif|webp)$/;

/** Returns the address of an image, or undefined if the page does not show its type. */
export function imageOf(type, base64) {
  return PIXELS.test(type) ? `data:${type};base64,${base64}` : undefined;
}

/** Returns the address of a part's image, or undefined for any address outside the page. */
export function ownImage(url) {
  const [, type, base64] = /^data:([^;,]+);base64,(.*)$/s.exec(url) ?? [];
  return type && imageOf(type, base64);
}
