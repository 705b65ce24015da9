// Where words stand in a text. The server names them in order; here they are found again, so that what is shown is the
// text itself, with every space and sign, and not the words joined anew.

/** [[start, end], ...], one for each word, in order; null for one that is not found after the one before it. */
export function locate(text, words) {
  let from = 0;
  return words.map((word) => {
    const start = word ? text.indexOf(word, from) : -1;
    if (start < 0) return null;
    from = start + word.length;
    return [start, from];
  });
}

/** Fills `element` with `text`, each place in an element of `make(number, word)`; text stays text, never HTML. */
export function fill(element, text, places, make) {
  const parts = [];
  let from = 0;
  places.forEach((place, number) => {
    if (!place) return;
    parts.push(text.slice(from, place[0]), make(number, text.slice(...place)));
    from = place[1];
  });
  parts.push(text.slice(from));
  element.replaceChildren(...parts.filter((part) => part !== ""));
  return element;
}

/** A probability for people. */
export function percent(share) {
  if (share < 0.001) return "< 0.1 %";
  if (share < 0.01) return `${(share * 100).toFixed(1)} %`;
  return `${Math.round(share * 100)} %`;
}
