// Markdown of models and users becomes elements, never HTML: what is no Markdown is shown as the text that it is.
import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";

/// Longer texts, and those with as many marks in a row or as long a word as nobody writes, are shown as they are: nobody waits for them.
const MOST = 20_000;
const MARKS = /[*_~>[\]`(!<]{40}|(?:[*_~][^\s*_~]?){200}|^(?:[ \t]*(?:[>*+-]|\d+[.)])){40}|[ \t]{1000}|\S{1000}/m;
/// Marks of a paragraph: each is held against those before it.
const MOST_MARKS = 2000;

const isSlow = (paragraph: string): boolean => paragraph.length > MOST_MARKS && (paragraph.match(/[*_~[\]`]/g)?.length ?? 0) > MOST_MARKS;

function read(text: string): ComponentChildren {
  if (text.length > MOST || MARKS.test(text) || text.split("\n\n").some(isSlow)) return <pre>{text}</pre>;
  try {
    return all(new Lexer({ gfm: true, breaks: true }).lex(text));
  } catch {
    return <pre>{text}</pre>;
  }
}

/// An address to which a person may be sent; pictures of elsewhere are links too, so that opening a page calls nobody.
function Link({ to, children }: { to: string; children: ComponentChildren }): JSX.Element {
  const isSafe = /^(https?:|mailto:)/i.test(to);
  return isSafe ? <a href={to} target="_blank" rel="noopener noreferrer nofollow">{children}</a> : <span>{children}</span>;
}

function items(token: Tokens.List): JSX.Element[] {
  return token.items.map((item, i) => (
    <li key={i}>
      {item.task && <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "done" : "open"} />}
      {all(item.tokens)}
    </li>
  ));
}

function one(token: Token, key: number): ComponentChildren {
  switch (token.type) {
    case "space":
      return null;
    case "heading":
      // No heading of the page: whoever steps through those looks for its own.
      return <p key={key} class={`heading depth-${token.depth}`}>{all(token.tokens)}</p>;
    case "paragraph":
      return <p key={key}>{all(token.tokens)}</p>;
    case "strong":
      return <strong key={key}>{all(token.tokens)}</strong>;
    case "em":
      return <em key={key}>{all(token.tokens)}</em>;
    case "del":
      return <del key={key}>{all(token.tokens)}</del>;
    case "codespan":
      return <code key={key}>{token.text}</code>;
    case "code":
      return <pre key={key} tabIndex={0}><code>{token.text}</code></pre>;
    case "blockquote":
      return <blockquote key={key}>{all(token.tokens)}</blockquote>;
    case "br":
      return <br key={key} />;
    case "hr":
      return <hr key={key} />;
    case "list":
      return token.ordered ? <ol key={key} start={token.start || 1}>{items(token as Tokens.List)}</ol> : <ul key={key}>{items(token as Tokens.List)}</ul>;
    case "link":
      return <Link key={key} to={token.href}>{all(token.tokens)}</Link>;
    case "image":
      return <Link key={key} to={token.href}>🖼 {token.text || "picture"}</Link>;
    case "table": {
      const table = token as Tokens.Table;
      return (
        <table key={key}>
          <thead><tr>{table.header.map((cell, i) => <th key={i}>{all(cell.tokens)}</th>)}</tr></thead>
          <tbody>{table.rows.map((row, i) => <tr key={i}>{row.map((cell, j) => <td key={j}>{all(cell.tokens)}</td>)}</tr>)}</tbody>
        </table>
      );
    }
    case "text":
      return token.tokens ? all(token.tokens) : token.text;
    case "escape":
      return token.text;
    default:
      return token.raw;
  }
}

const all = (tokens: Token[] | undefined): ComponentChildren => tokens?.map(one);

export function Markdown({ text }: { text: string }): JSX.Element {
  const shown = useMemo(() => read(text), [text]);
  return <div class="markdown">{shown}</div>;
}
