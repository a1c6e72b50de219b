/* canvas.js - a time axis, and panels below each other that share its window and its cursor. */

/* The colours of the style sheet, read again when the theme changes. */
const palette = {
    read() {
        const style = getComputedStyle(document.documentElement);
        for (const name of ["paper", "card", "ink", "muted", "line", "strong", "accent", "accent-soft", "cursor",
            "empty", "exposed", "hidden", "local", "credit", "launch", "resident", "budget", "r0", "r1", "r2", "r3", "r4", "r5",
            ...["f", "b", "i", "w"].flatMap((kind) => [0, 1].flatMap((half) => [`${kind}${half}`, `${kind}${half}-ink`]))]) {
            this[name] = style.getPropertyValue("--" + name).trim();
        }
    },
    of(plan, action) {
        return LOOKS[plan.look[action]];
    },
};

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif";
const LEFT = 64, RIGHT = 14, ZOOM_LABEL = 24, FIT_LABEL = 18, LABEL_LEAST = 8, DENSE = 4, WIDTH_MOST = 1.6e7;

function rowHeight(rankCount) {
    return rankCount <= 8 ? 32 : rankCount <= 16 ? 25 : rankCount <= 32 ? 18 : rankCount <= 64 ? 13 : 9;
}

/*
 * options: span (length of the axis), zoomMost (pixels per unit), zoomFirst (pixels per unit if the whole
 * would be too small to read; 0 shows the whole), label, panels [{title, height(), key(), draw(context,
 * timeline, width, height), over(..)}], cursor() -> {from, to} in units or null, onPick(panel, time, y),
 * onKey(event) -> handled, tip(panel, time, y) -> text or "".
 * The result of draw is kept until the window or key() changes; over() is drawn on it each time.
 */
class Timeline {
    constructor(options) {
        this.options = options;
        this.scale = 0;
        this.isFit = true;
        this.drawCount = 0;
        this.layers = [];
        this.canvases = options.panels.map((panel, place) => {
            const canvas = make("canvas", {"aria-hidden": "true"});
            canvas.addEventListener("click", (event) => options.onPick(place, this.timeAt(event.offsetX), event.offsetY));
            canvas.addEventListener("mousemove", (event) => this.showTip(event, place));
            canvas.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
            return canvas;
        });
        this.stack = make("div", {class: "stack"}, options.panels.map((panel, place) => [
            panel.title ? make("p", {class: "panel-title"}, panel.title) : null, this.canvases[place]]));
        this.spacer = make("div", null, this.stack);
        this.element = make("div", {class: "scroller", tabindex: 0, role: "application", "aria-label": options.label},
            this.spacer);
        this.element.addEventListener("scroll", () => this.invalidate(), {passive: true});
        this.element.addEventListener("keydown", (event) => this.onKey(event));
        this.element.addEventListener("wheel", (event) => this.onWheel(event), {passive: false});
        this.observer = new ResizeObserver(() => this.resize());
        this.observer.observe(this.element);
    }

    close() {
        this.observer.disconnect();
    }

    get width() {
        return this.drawnWidth ?? this.element.clientWidth;
    }

    get fitScale() {
        return Math.max(1e-6, (this.width - LEFT - RIGHT) / this.options.span);
    }

    resize() {
        if (this.width === 0) {
            return;
        }
        if (this.scale === 0 && this.options.zoomFirst > 0 && this.fitScale < FIT_LABEL) {
            this.isFit = false;
        }
        const isFirst = this.scale === 0;
        this.setScale(this.isFit ? this.fitScale : this.scale || this.options.zoomFirst);
        if (isFirst) {
            this.reveal();
        }
    }

    setScale(scale, anchor = LEFT) {
        const time = this.scale > 0 ? this.timeAt(anchor) : 0;
        const most = Math.max(this.fitScale, Math.min(this.options.zoomMost, WIDTH_MOST / this.options.span));
        this.scale = Math.min(Math.max(scale, this.fitScale), most);
        this.isFit = this.scale <= this.fitScale * (1 + NEAR);
        this.stack.style.width = this.width + "px";
        this.spacer.style.width = this.isFit ? "100%" : LEFT + RIGHT + this.options.span * this.scale + "px";
        this.element.scrollLeft = time * this.scale + LEFT - anchor;
        this.invalidate();
    }

    zoom(factor, anchor) {
        this.setScale(factor === 0 ? this.fitScale : this.scale * factor, anchor ?? this.anchorOfCursor());
    }

    anchorOfCursor() {
        const cursor = this.options.cursor();
        const x = cursor ? this.xAt(cursor.from) : LEFT;
        return x >= LEFT && x <= this.width ? x : (LEFT + this.width) / 2;
    }

    /* Asks the browser once for each drawing, because each question may cause a new layout. */
    get scrolled() {
        return this.drawnLeft ?? this.element.scrollLeft;
    }

    xAt(time) {
        return LEFT + time * this.scale - this.scrolled;
    }

    timeAt(x) {
        return (x - LEFT + this.scrolled) / this.scale;
    }

    /* Scrolls as little as needed to show the cursor. */
    reveal() {
        const cursor = this.options.cursor();
        if (!cursor || this.scale === 0) {
            return;
        }
        const room = 3 * this.scale;
        const from = cursor.from * this.scale, to = cursor.to * this.scale;
        const inside = this.width - LEFT - RIGHT;
        if (from < this.element.scrollLeft) {
            this.element.scrollLeft = from - room;
        } else if (to > this.element.scrollLeft + inside) {
            this.element.scrollLeft = to - inside + room;
        }
        this.invalidate();
    }

    onKey(event) {
        const zooms = {"+": 1.5, "=": 1.5, "-": 1 / 1.5, "0": 0};
        if (event.ctrlKey || event.metaKey || event.altKey) {
            return;
        }
        if (event.key in zooms) {
            this.zoom(zooms[event.key]);
            event.preventDefault();
        } else if (this.options.onKey(event)) {
            event.preventDefault();
        }
    }

    onWheel(event) {
        if (event.ctrlKey) {
            event.preventDefault();
            this.zoom(Math.exp(-event.deltaY / 300), event.clientX - this.element.getBoundingClientRect().left);
        }
    }

    showTip(event, place) {
        const tip = byId("tip");
        const text = event.offsetX < LEFT ? "" : this.options.tip(place, this.timeAt(event.offsetX), event.offsetY);
        tip.textContent = text;
        tip.hidden = text === "";
        tip.style.left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8) + "px";
        tip.style.top = (event.clientY + 18 + tip.offsetHeight > innerHeight
            ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
    }

    invalidate() {
        if (!this.isWaiting) {
            this.isWaiting = true;
            requestAnimationFrame(() => {
                this.isWaiting = false;
                this.draw();
            });
        }
    }

    draw() {
        if (this.scale === 0 || !this.element.isConnected) {
            return;
        }
        this.drawCount++;
        this.drawnWidth = this.element.clientWidth;
        this.drawnLeft = this.element.scrollLeft;
        this.drawPanels();
        this.drawnWidth = undefined;
        this.drawnLeft = undefined;
    }

    drawPanels() {
        this.options.panels.forEach((panel, place) => {
            const canvas = this.canvases[place];
            const ratio = devicePixelRatio || 1;
            const height = panel.height();
            if (canvas.width !== Math.round(this.width * ratio) || canvas.height !== Math.round(height * ratio)) {
                canvas.width = Math.round(this.width * ratio);
                canvas.height = Math.round(height * ratio);
                canvas.style.width = this.width + "px";
                canvas.style.height = height + "px";
            }
            const context = canvas.getContext("2d");
            context.setTransform(1, 0, 0, 1, 0, 0);
            context.clearRect(0, 0, canvas.width, canvas.height);
            context.drawImage(this.layer(place, canvas, ratio), 0, 0);
            context.setTransform(ratio, 0, 0, ratio, 0, 0);
            panel.over(context, this, this.width, height);
        });
    }

    /* The part of a panel that the cursor does not change; drawn again only if it has changed. */
    layer(place, canvas, ratio) {
        const panel = this.options.panels[place];
        const layer = this.layers[place] || (this.layers[place] = make("canvas"));
        const key = [canvas.width, canvas.height, ratio, this.scale, this.scrolled, palette.paper, panel.key()].join();
        if (layer.key !== key) {
            layer.key = key;
            layer.width = canvas.width;
            layer.height = canvas.height;
            const context = layer.getContext("2d");
            context.setTransform(ratio, 0, 0, ratio, 0, 0);
            panel.draw(context, this, this.width, panel.height());
        }
        return layer;
    }
}

/* Clips to the axis, so that nothing covers the names at the left. */
function clipped(context, width, height, draw) {
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    draw();
    context.restore();
}

function drawCursor(context, timeline, height, top = 0) {
    const cursor = timeline.options.cursor();
    if (cursor) {
        const from = timeline.xAt(cursor.from);
        const width = Math.max(2, timeline.xAt(cursor.to) - from);
        context.fillStyle = palette.cursor;
        context.globalAlpha = 0.09;
        context.fillRect(from, top, width, height - top);
        context.globalAlpha = 1;
        context.strokeStyle = palette.cursor;
        context.lineWidth = 1;
        context.strokeRect(from + 0.5, top + 0.5, width - 1, height - top - 1);
    }
}

/* Numbers along the top: ticks in the middle of their cells, times at their place. */
function drawAxis(context, timeline, width, format, offset) {
    const inside = Math.max(1, Math.floor((width - LEFT) / 70));
    const from = timeline.timeAt(LEFT), to = timeline.timeAt(width);
    context.fillStyle = palette.muted;
    context.font = `12px ${FONT}`;
    context.textAlign = "center";
    for (const mark of niceMarks(from, Math.min(to, timeline.options.span - offset), inside)) {
        if (offset === 0 || Number.isInteger(mark)) {
            context.fillText(format(mark), timeline.xAt(mark + offset), 12);
        }
    }
}

/*
 * Rows of actions, one for each rank: `times` has start and end; `isFaint(action)` is drawn pale,
 * `isMarked(action)` outlined; `after(action, box)` draws over a cell.  A row is `height` high; actions
 * take `cell` of it (default: all).
 */
function drawRows(context, timeline, plan, rows) {
    const {times, top, height, first, count} = rows;
    const from = timeline.timeAt(LEFT), to = timeline.timeAt(timeline.width);
    if (rows.isTicks && timeline.scale < DENSE) {
        drawDense(context, timeline, plan, rows);
        return;
    }
    const gap = 1;
    const cell = rows.cell || height;
    const size = Math.min(13, cell - 5);
    sizeSet = 0;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let rank = first; rank < first + count; rank++) {
        const y = top + (rank - first) * height;
        for (let action = Math.max(plan.begin[rank], plan.last(times.end, rank, from));
            action < plan.begin[rank + 1] && times.start[action] < to; action++) {
            const x = timeline.xAt(times.start[action]);
            const width = timeline.xAt(times.end[action]) - x;
            drawCell(context, plan, action, {x: x + gap / 2, y: y + 1, width: Math.max(0.2, width - gap), height: cell - 2, size}, rows);
        }
    }
    context.textBaseline = "alphabetic";
}

/* Cells of a few pixels or less: each column of pixels mixes the colours of its actions.  The rows are
   drawn as one image with a line for each rank, so that 100,000 actions take no longer. */
function drawDense(context, timeline, plan, rows) {
    const ratio = devicePixelRatio || 1;
    const left = Math.max(LEFT, timeline.xAt(0));
    const columns = Math.ceil((Math.min(timeline.width, timeline.xAt(timeline.options.span)) - left) * ratio);
    if (columns <= 0) {
        return;
    }
    const image = new ImageData(columns, rows.count);
    for (let place = 0; place < rows.count; place++) {
        mixRow(image, place, plan, rows, {from: timeline.timeAt(left), perTime: timeline.scale * ratio, rank: rows.first + place});
    }
    const canvas = make("canvas", {width: columns, height: rows.count});
    canvas.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    for (let place = 0; place < rows.count; place++) {
        context.drawImage(canvas, 0, place, columns, 1, left, rows.top + place * rows.height + 1, columns / ratio, rows.height - 2);
    }
}

/* Red, green and blue of a colour #rrggbb. */
function channels(color) {
    return [1, 3, 5].map((place) => parseInt(color.slice(place, place + 2), 16));
}

function mixRow(image, place, plan, rows, axis) {
    const columns = image.width;
    const sums = new Float32Array(4 * columns); /* colours weighted by share, and the covered share */
    const colors = LOOKS.map((name) => channels(palette[name]));
    const last = axis.from + columns / axis.perTime;
    for (let action = Math.max(plan.begin[axis.rank], plan.last(rows.times.end, axis.rank, axis.from));
        action < plan.begin[axis.rank + 1] && rows.times.start[action] < last; action++) {
        const color = colors[plan.look[action]];
        const begin = (rows.times.start[action] - axis.from) * axis.perTime, end = (rows.times.end[action] - axis.from) * axis.perTime;
        const strength = rows.isFaint(action) ? 0.22 : 1;
        for (let column = Math.max(0, Math.floor(begin)); column < Math.min(end, columns); column++) {
            const share = strength * (Math.min(end, column + 1) - Math.max(begin, column));
            sums[4 * column] += share * color[0];
            sums[4 * column + 1] += share * color[1];
            sums[4 * column + 2] += share * color[2];
            sums[4 * column + 3] += share;
        }
    }
    const empty = channels(palette.empty);
    for (let column = 0; column < columns; column++) {
        const rest = Math.max(0, 1 - sums[4 * column + 3]);
        const pixel = 4 * (place * columns + column);
        for (let channel = 0; channel < 3; channel++) {
            image.data[pixel + channel] = sums[4 * column + channel] + rest * empty[channel];
        }
        image.data[pixel + 3] = 255;
    }
}

/* Setting a font costs more than drawing a label with it. */
let sizeSet = 0;

function setSize(context, size) {
    if (sizeSet !== size) {
        context.font = `${size}px ${FONT}`;
        sizeSet = size;
    }
}

function drawCell(context, plan, action, box, rows) {
    const name = palette.of(plan, action);
    context.globalAlpha = rows.isFaint(action) ? 0.22 : 1;
    context.fillStyle = palette[name];
    context.fillRect(box.x, box.y, box.width, box.height);
    if (box.size >= LABEL_LEAST && box.width > 14) {
        const label = plan.label(action);
        const size = Math.min(box.size, Math.floor(2 * (box.width - 2) / (label.length * 0.62)) / 2);
        if (size >= LABEL_LEAST) {
            setSize(context, size);
            context.fillStyle = palette[name + "-ink"];
            context.fillText(label, box.x + box.width / 2, box.y + box.height / 2 + 0.5);
        }
    }
    context.globalAlpha = 1;
    if (rows.isMarked(action)) {
        context.strokeStyle = palette.ink;
        context.lineWidth = 2;
        context.strokeRect(box.x + 1, box.y + 1, Math.max(1, box.width - 2), box.height - 2);
    }
    if (rows.after) {
        rows.after(action, box);
    }
}

function drawNames(context, plan, rows, chosen) {
    const size = Math.max(9, Math.min(13, (rows.cell || rows.height) - 3));
    const every = rows.height < 11 ? 4 : 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let rank = rows.first; rank < rows.first + rows.count; rank++) {
        const y = rows.top + (rank - rows.first) * rows.height;
        if (rank === chosen) {
            context.fillStyle = palette["accent-soft"];
            context.fillRect(0, y, LEFT - 6, rows.height);
        }
        if (rank % every === 0 || rank === chosen) {
            context.font = `${rank === chosen ? "600 " : ""}${size}px ${FONT}`;
            context.fillStyle = rank === chosen ? palette.accent : palette.muted;
            context.fillText(`rank ${rank}`, LEFT - 10, y + (rows.cell || rows.height) / 2 + 0.5);
        }
    }
    context.textBaseline = "alphabetic";
}
