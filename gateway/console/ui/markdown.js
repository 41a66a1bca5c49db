/**
 * Markdown of agents as elements, from the tokens of a lexer. HTML is shown as text, images as links, and links go to
 * the web or to mail only.
 */
import { clean, hasLongLine } from "../core/text.js";
import { CopyButton, LongText, html, useEffect, useMemo, useState } from "./base.js";

/** The lexer, which the list of sessions does not wait for. @type {typeof import("../vendor/marked.js").lexer | null} */
let lexer = null;
const loading = import("../vendor/marked.js").then((module) => { lexer = module.lexer; });

/** Maximum depth of nested tokens. */
const DEPTH_MAX = 40;
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/** @typedef {{ type: string, text?: string, raw?: string, tokens?: Token[] } & Record<string, any>} Token */

/**
 * @param {{ text: string, fence?: string | undefined, ended?: boolean }} props `fence` is the opening line of a code block
 *   in which the text begins; `ended` is true if the block goes on in a later part.
 */
export function Markdown({ text, fence, ended = false }) {
  const [loaded, setLoaded] = useState(lexer !== null);
  useEffect(() => { if (!loaded) loading.then(() => setLoaded(true), () => undefined); }, []);
  const tokens = useMemo(() => {
    if (!lexer || hasLongLine(text)) return null;
    const source = clean(fence ? `${fence}\n${text}` : text);
    try {
      return levelled(lexer(source, { gfm: true, breaks: true }));
    } catch {
      // Too deeply nested.
      return null;
    }
  }, [text, fence, ended, loaded]);
  if (!tokens) return html`<${LongText} text=${text} />`;
  return html`<div class="markdown" dir="auto">${blocks(tokens, 0)}</div>`;
}

/** @param {Token[] | undefined} tokens @param {number} depth @returns {any} */
function blocks(tokens, depth) {
  if (depth > DEPTH_MAX) return (tokens ?? []).map((token) => token.raw ?? "").join("");
  return (tokens ?? []).map((token) => block(token, depth + 1));
}

/** @param {Token} token @param {number} depth @returns {any} */
function block(token, depth) {
  switch (token.type) {
    case "space": case "def": return null;
    case "heading": return heading(token, depth);
    case "code": return html`<${CodeBlock} text=${token.text ?? ""} language=${token.lang ?? ""} />`;
    case "blockquote": return html`<blockquote dir="auto">${blocks(token.tokens, depth)}</blockquote>`;
    case "list": return list(token, depth);
    case "table": return table(token, depth);
    case "hr": return html`<hr />`;
    case "html": return html`<p dir="auto" class="raw-html">${token.text ?? token.raw}</p>`;
    case "text": return token.tokens ? inlines(token.tokens, depth) : decoded(token.text ?? "");
    default: return html`<p dir="auto">${token.tokens ? inlines(token.tokens, depth) : token.text ?? token.raw}</p>`;
  }
}

/** @param {Token} token @param {number} depth */
function heading(token, depth) {
  const name = `h${token["level"] ?? 6}`;
  return html`<${name} dir="auto" class="depth-${token["depth"]}">${inlines(token.tokens, depth)}</${name}>`;
}

/** Gives the headings levels below that of the page, none of which is skipped. @param {Token[]} tokens */
function levelled(tokens) {
  let before = 1;
  for (const token of tokens) {
    if (token.type !== "heading") continue;
    token["level"] = Math.min(6, before + 1, Math.max(2, token["depth"] + 1));
    before = token["level"];
  }
  return tokens;
}

/** @param {Token} token @param {number} depth */
function list(token, depth) {
  const items = (token.items ?? []).map((/** @type {Token} */ item) => html`<li dir="auto" class=${item.task ? "task" : ""}>
    ${item.task ? html`<span class="task-mark" aria-label=${item.checked ? "done" : "open"} role="img">
      ${item.checked ? "☑" : "☐"} </span>` : null}
    ${blocks((item.tokens ?? []).filter((part) => part.type !== "checkbox"), depth)}</li>`);
  return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
}

/** @param {Token} token @param {number} depth */
function table(token, depth) {
  const cell = (/** @type {Token} */ part) => inlines(part.tokens, depth);
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Table"><table>
    <thead><tr>${(token.header ?? []).map((/** @type {Token} */ part) => html`<th scope="col" dir="auto">${cell(part)}</th>`)}
    </tr></thead>
    <tbody>${(token.rows ?? []).map((/** @type {Token[]} */ row) => html`<tr>${row.map((part) => html`<td dir="auto">
    ${cell(part)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** @param {Token[] | undefined} tokens @param {number} depth @returns {any} */
function inlines(tokens, depth) {
  if (depth > DEPTH_MAX) return (tokens ?? []).map((token) => token.raw ?? "").join("");
  return (tokens ?? []).map((token) => inline(token, depth + 1));
}

/** @param {Token} token @param {number} depth @returns {any} */
function inline(token, depth) {
  switch (token.type) {
    case "strong": return html`<strong>${inlines(token.tokens, depth)}</strong>`;
    case "em": return html`<em>${inlines(token.tokens, depth)}</em>`;
    case "del": return html`<del>${inlines(token.tokens, depth)}</del>`;
    case "codespan": return html`<code dir="ltr">${token.text}</code>`;
    case "br": return html`<br />`;
    case "link": return link(token["href"], inlines(token.tokens, depth));
    case "image": return link(token["href"], `Image: ${token.text || token["href"]}`);
    case "html": return token.text ?? token.raw;
    case "checkbox": return null;
    default: return token.tokens ? inlines(token.tokens, depth) : decoded(token.text ?? token.raw ?? "");
  }
}

/** @param {unknown} href @param {any} content */
function link(href, content) {
  const url = safeUrl(href);
  if (!url) return html`<span>${content}</span>`;
  return html`<a href=${url} target="_blank" rel="noopener noreferrer nofollow" title=${url}>${content}</a>`;
}

/** Returns an address that may be opened; null for every other. @param {unknown} href */
export function safeUrl(href) {
  try {
    const url = new URL(String(href));
    return PROTOCOLS.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** @type {Record<string, string>} */
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0" };

/** @param {string} text */
function decoded(text) {
  return text.includes("&") ? text.replace(/&(?:amp|lt|gt|quot|#39|nbsp);/g, (entity) => ENTITIES[entity] ?? entity) : text;
}

/** @param {{ text: string, language?: string }} props */
function CodeBlock({ text, language = "" }) {
  const name = clean(language.split(/\s/, 1)[0]).slice(0, 30);
  return html`<figure class="code">
    <figcaption><span>${name || "text"}</span><${CopyButton} text=${text} label="Copy code" /></figcaption>
    <pre tabindex="0" dir="ltr"><code><${LongText} text=${text} mono=${true} /></code></pre>
  </figure>`;
}
