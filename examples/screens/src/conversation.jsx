// What both pages show: the state of the connection, messages, and calls as cards. React escapes all content.
import { useLayoutEffect, useRef } from "react";

const CONNECTIONS = { connecting: "Connecting…", live: "Live", reconnecting: "Reconnecting…", refused: "Not available" };
const NEAR_END = 80;

export function Conversation({ title, client, connection, blocks }) {
  const list = useScrollToEnd(blocks);
  return (
    <main className="conversation" data-client={client}>
      <header>
        <h1>
          {title} <small>{client}</small>
        </h1>
        <p role="status" className={`connection ${connection.state}`} title={connection.reason}>
          {CONNECTIONS[connection.state]}
        </p>
      </header>
      <div className="blocks" ref={list} tabIndex={0} role="region" aria-label={`Messages in ${title}`}>
        {blocks.length === 0 && <p className="empty">Nothing has been said yet.</p>}
        {blocks.map((block) => (
          <Block key={`${block.kind} ${block.id}`} {...block} />
        ))}
      </div>
    </main>
  );
}

function useScrollToEnd(blocks) {
  const list = useRef(null);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    const box = list.current;
    if (isAtEnd.current) box.scrollTop = box.scrollHeight;
    const note = () => (isAtEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END);
    box.addEventListener("scroll", note);
    return () => box.removeEventListener("scroll", note);
  }, [blocks]);
  return list;
}

function Block({ kind, id, parent, ...block }) {
  const Kind = { call: Call, thinking: Thinking, notice: Notice, source: Source }[kind] ?? Bubble;
  return (
    <article className={`block ${kind}${parent ? " nested" : ""}`} data-kind={kind} data-id={id}>
      <Kind {...block} />
    </article>
  );
}

function Bubble({ text, images, facts }) {
  return (
    <>
      <p className="content">{text}</p>
      <Images images={images} />
      <Marks facts={facts} />
    </>
  );
}

function Thinking({ text, facts }) {
  return (
    <details open>
      <summary>Thinking</summary>
      <p className="content">{text}</p>
      <Marks facts={facts} />
    </details>
  );
}

function Call({ name, input, results, facts }) {
  return (
    <>
      <div className="title">
        <code className="name">{name}</code> <State results={results} facts={facts} />
      </div>
      <pre className="input">{input}</pre>
      {results.map((result) => (
        <div key={result.id} className={`result${result.isError ? " failed" : ""}`} data-id={result.id}>
          <pre className="output">{result.text}</pre>
          <Images images={result.images} />
        </div>
      ))}
      <Marks facts={facts} />
    </>
  );
}

function State({ results, facts }) {
  if (results.some((result) => result.isError)) return <span className="state failed">failed</span>;
  if (results.length > 0) return <span className="state done">done</span>;
  if (facts.incomplete) return <span className="state cut">cut off</span>;
  return <span className="state running">running</span>;
}

function Notice({ label, text }) {
  return (
    <>
      <b>{label}</b> <span className="content">{text}</span>
    </>
  );
}

function Source({ url, text }) {
  // A link of another scheme could run a script.
  if (!/^https?:\/\//i.test(url)) return <span className="content">{text}</span>;
  return (
    <a className="content" href={url} target="_blank" rel="noreferrer">
      {text}
    </a>
  );
}

function Images({ images = [] }) {
  return images.map((url, at) =>
    url ? <img key={at} src={url} alt="Attached by the sender" /> : <p key={at} className="mark">An image that is not shown</p>,
  );
}

// An application marks what is incomplete or doubtful, and never hides it.
function Marks({ facts: { incomplete, reason, doubtful, repeats } }) {
  return (
    <>
      {incomplete && <p className="mark">Incomplete{reason ? `: ${reason}` : ""}</p>}
      {doubtful && <p className="mark">May be withdrawn</p>}
      {repeats && <p className="mark">Repeats an earlier text</p>}
    </>
  );
}
