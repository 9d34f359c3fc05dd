// Reads the blocks of the page. In: base64, and the plan of the rows. Out: bytes, and the rows of the timeline as typed
// arrays: for each level when its slices begin and end, what they are called, of how many events they are and how long
// those took. The counterpart is packed.rs.

export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

export async function unpack(text) {
  const packed = new Blob([fromBase64(text)]).stream();
  const unpacked = packed.pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}

// Numbers in LEB128, one after the other.
class Numbers {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  next() {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = this.bytes[this.at];
      if (byte === undefined) throw new Error("the data of the timeline is cut");
      this.at += 1;
      // No shift: numbers have up to 53 bits.
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
      scale *= 128;
    }
  }

  column(column) {
    for (let at = 0; at < column.length; at += 1) column[at] = this.next();
    return column;
  }
}

function levelOf(numbers, belowNs, length) {
  const from = new Float64Array(length);
  let before = 0;
  for (let at = 0; at < length; at += 1) {
    before += numbers.next();
    from[at] = before;
  }
  const to = new Float64Array(length);
  for (let at = 0; at < length; at += 1) to[at] = from[at] + numbers.next();
  const label = numbers.column(new Uint32Array(length));
  const events = numbers.column(new Uint32Array(length));
  const busy = new Float64Array(length);
  for (let at = 0; at < length; at += 1) busy[at] = events[at] > 1 ? numbers.next() : to[at] - from[at];
  return { belowNs, from, to, label, events, busy };
}

export function rowsOf(plan, bytes) {
  const numbers = new Numbers(bytes);
  let detailsEnd = 0;
  return plan.map(([track, depth, levels]) => {
    const row = { track, depth, levels: [] };
    levels.forEach(([belowNs, length], number) => {
      row.levels.push(levelOf(numbers, belowNs, length));
      if (number > 0) return;
      row.stack = numbers.column(new Uint32Array(length));
      row.flow = numbers.column(new Float64Array(length));
      row.detailsAt = new Float64Array(length + 1);
      for (let at = 0; at < length; at += 1) {
        row.detailsAt[at] = detailsEnd;
        detailsEnd += numbers.next();
      }
      row.detailsAt[length] = detailsEnd;
    });
    return row;
  });
}

// What the trace says about an event: the objects of its begin and its end as one. None if the page does not have it.
export function detailsOf(row, at, bytes) {
  const text = new TextDecoder().decode(bytes.subarray(row.detailsAt[at], row.detailsAt[at + 1]));
  return text ? Object.assign({}, ...JSON.parse(`[${text}]`)) : null;
}
