/* dom.js - elements, tables and numbers.  Text is set as text, never as markup. */

const byId = (id) => document.getElementById(id);

/* An element with attributes and children; a string child becomes text, null is left out. */
function make(tag, attributes, ...children) {
    const isSvg = ["svg", "path", "line", "text", "circle", "rect"].includes(tag);
    const element = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (name.startsWith("on")) {
            element.addEventListener(name.slice(2), value);
        } else if (value === true) {
            element.setAttribute(name, "");
        } else if (value !== false && value !== null && value !== undefined) {
            element.setAttribute(name, value);
        }
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map(
        (child) => (typeof child === "object" ? child : String(child))));
    return element;
}

const number = (value, digits = 0) => (value === null || value === undefined || !Number.isFinite(value)
    ? "\u2013" : (value === 0 ? 0 : value).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits}));
const percent = (value) => (value === null || value === undefined ? "\u2013" : number(100 * value, 1) + " %");
const ticks = (value) => value.toLocaleString("en", {maximumFractionDigits: 2});
const counted = (count, word) => `${number(count)} ${word}${count === 1 ? "" : word.endsWith("h") ? "es" : "s"}`;
const milliseconds = (value) => number(value, value < 10 ? 3 : value < 100 ? 2 : 1) + " ms";

function bytes(value) {
    if (value === null || value === undefined) {
        return "\u2013";
    }
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    for (; value >= 1000 && unit < 4; unit++) {
        value /= 1000;
    }
    return number(value, unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2) + " " + units[unit];
}

/* `columns` are titles, with "#" before columns of numbers; a cell is text or an element. */
function table(caption, columns, rows, isChosen) {
    const classes = columns.map((title) => (title.startsWith("#") ? "number" : "text"));
    const head = columns.map((title, i) => make("th", {scope: "col", class: classes[i]}, title.replace("#", "")));
    const body = rows.map((row, place) => make("tr", {class: isChosen && isChosen(place) ? "chosen" : null},
        row.map((cell, i) => make("td", {class: classes[i]}, cell))));
    return make("table", null, caption ? make("caption", null, caption) : null,
        make("thead", null, make("tr", null, head)), make("tbody", null, body));
}

/* A scrolling region that the keyboard can reach. */
function scrolled(child, label) {
    return make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": label}, child);
}

function card(title, ...children) {
    return make("section", {class: "card"}, title ? make("h2", null, title) : null, children);
}

/* Two columns of cards; on a narrow page below each other. */
function columns(left, right) {
    return make("div", {class: "cards"}, make("div", null, left), make("div", null, right));
}

function stats(rows) {
    return make("dl", {class: "stats"}, rows.filter(Boolean).map(([term, value, small]) => make("div", null,
        make("dt", null, term), make("dd", null, value, small ? make("span", {class: "small"}, small) : null))));
}

function csvText(columns, rows) {
    const cell = (text) => (/[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : String(text));
    return [columns.map((title) => title.replace("#", "")), ...rows].map((row) => row.map(cell).join(",")).join("\n");
}

function download(name, text) {
    const address = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
    make("a", {href: address, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/* The data of a figure: opened on demand, 200 rows at a time, or all of it as a file.
   rowAt(i) gives the cells of row i as text. */
function dataTable(name, columns, rowCount, rowAt) {
    const page = 200;
    const holder = make("div");
    let first = 0;
    const show = (from) => {
        first = Math.max(0, Math.min(from, Math.floor((rowCount - 1) / page) * page));
        const rows = [];
        for (let i = first; i < Math.min(first + page, rowCount); i++) {
            rows.push(rowAt(i));
        }
        holder.replaceChildren(make("div", {class: "tools"},
            rowCount > page ? make("button", {type: "button", onclick: () => show(first - page)}, "Before") : null,
            rowCount > page ? make("button", {type: "button", onclick: () => show(first + page)}, "After") : null,
            make("button", {type: "button", onclick: () => download(name + ".csv",
                csvText(columns, Array.from({length: rowCount}, (_, i) => rowAt(i))))}, "Save as CSV"),
            make("span", {class: "note"}, `rows ${number(first)} to ${number(first + rows.length - 1)} of ${number(rowCount)}`)),
        scrolled(table("", columns, rows), name));
    };
    const details = make("details", {class: "data"}, make("summary", null, `Data: ${name}`), holder);
    details.addEventListener("toggle", () => details.open && rowCount > 0 && show(first), {once: true});
    return details;
}

/* A curve with its axes; points without a value interrupt it. */
function lineChart(label, xs, ys) {
    const width = 640, height = 240, left = 56, right = 12, top = 12, bottom = 30;
    const known = ys.filter((y) => y !== null && Number.isFinite(y));
    if (known.length === 0) {
        return make("p", {class: "note"}, "No values.");
    }
    const low = Math.min(...known), high = Math.max(...known), span = high - low || Math.abs(high) || 1;
    const marks = niceMarks(low, low + span, 5);
    const y0 = Math.min(low, marks[0]), y1 = Math.max(high, marks[marks.length - 1]);
    const x = (value) => left + (width - left - right) * (value - xs[0]) / (xs[xs.length - 1] - xs[0] || 1);
    const y = (value) => top + (height - top - bottom) * (1 - (value - y0) / (y1 - y0 || 1));
    const digits = span >= 100 ? 0 : span >= 5 ? 1 : span >= 0.5 ? 2 : 3;
    let path = "", isDown = false;
    xs.forEach((step, i) => {
        const isKnown = ys[i] !== null && Number.isFinite(ys[i]);
        path += isKnown ? `${isDown ? "L" : "M"}${x(step).toFixed(1)} ${y(ys[i]).toFixed(1)}` : "";
        isDown = isKnown;
    });
    return make("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label},
        marks.map((mark) => [make("line", {class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark)}),
            make("text", {x: left - 8, y: y(mark) + 4, "text-anchor": "end"}, number(mark, digits))]),
        niceMarks(xs[0], xs[xs.length - 1], 6).filter(Number.isInteger).map((mark) => make("text",
            {x: x(mark), y: height - 8, "text-anchor": "middle"}, number(mark))),
        make("path", {class: "curve", d: path}));
}

/* About `count` round numbers in [low, high]. */
function niceMarks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough) || rough;
    const marks = [];
    for (let i = Math.ceil(low / every - NEAR); i * every <= high + NEAR * every; i++) {
        marks.push(i * every);
    }
    return marks.length > 0 ? marks : [low];
}
