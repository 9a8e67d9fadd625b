// Where headings, emphasis and code stand in Markdown. The text stays as it is: citations are spans of it.

const INLINE = [
  ["code", /`[^`\n]+`/g],
  ["strong", /\*\*[^*\n]+\*\*|__[^_\n]+__/g],
  ["em", /(?<![\w*])\*[^\s*][^*\n]*\*(?![\w*])|(?<![\w_])_[^\s_][^_\n]*_(?![\w_])/g],
];

// [start, end, class], in code points as all spans are
export function styles(text) {
  const found = [];
  let at = 0; // in code points
  let fenced = false;
  for (const line of text.split("\n")) {
    const n = Array.from(line).length;
    const fence = /^\s*(```|~~~)/.test(line);
    if (fence || fenced) found.push([at, at + n, "md-code"]);
    else {
      if (/^ {0,3}#{1,6}\s/.test(line)) found.push([at, at + n, "md-head"]);
      for (const [name, pattern] of INLINE) {
        for (const match of line.matchAll(pattern)) {
          const start = at + Array.from(line.slice(0, match.index)).length;
          found.push([start, start + Array.from(match[0]).length, `md-${name}`]);
        }
      }
    }
    if (fence) fenced = !fenced;
    at += n + 1;
  }
  return found;
}
