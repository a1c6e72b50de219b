/*
 * window.js - a few ticks of two ranks, executed twice: without overlap, where a transfer blocks both
 * ranks, and with overlap.
 *
 * Durations are ticks; the reader sets that of a transfer; the order is the plan's.  Transfers to and
 * from other ranks are left out, and so are those that are consumed after the window.  Source: the
 * report, section 6.3 and figure 26.
 */

const EXECUTION = {left: 74, row: 30, track: 18, gap: 8, head: 26, axis: 18};

/* The actions of two ranks that begin in [from, to + 1), replayed from 0. */
class Execution {
    constructor(plan, window, isOverlapped) {
        this.plan = plan;
        this.window = window;
        this.isOverlapped = isOverlapped;
        this.times = new Map(); /* action -> {start, end}: the pass alone */
        this.held = []; /* {rank, start, end}: a transfer that blocks its rank */
        this.moves = []; /* {producer, consumer, class, between, start, end, waits} */
        this.replay();
        this.length = Math.max(1, ...[...this.times.values(), ...this.held, ...this.moves].map((span) => span.end));
    }

    actions(rank) {
        const {plan, window} = this;
        const found = [];
        for (let action = Math.max(plan.begin[rank], plan.last(plan.start, rank, window.from - 2 * NEAR));
            action < plan.begin[rank + 1] && plan.start[action] < window.to + 1 - NEAR; action++) {
            if (plan.start[action] >= window.from - NEAR) {
                found.push(action);
            }
        }
        return found;
    }

    /* What an action reads from the other rank; null if nothing, or if it was sent before the window. */
    handoff(action) {
        const {plan, window} = this;
        const handoff = plan.handoff(action);
        return handoff && handoff.class !== "local" && window.ranks.includes(plan.rankOf[handoff.producer])
            && plan.end[handoff.producer] + window.transfer > window.from + NEAR ? handoff : null;
    }

    /* The end of its producer; null if that has not run yet.  One before the window ran as planned. */
    producerEnd(producer) {
        const time = this.times.get(producer);
        if (time) {
            return time.end;
        }
        return this.plan.start[producer] < this.window.from - NEAR ? Math.min(0, this.plan.end[producer] - this.window.from) : null;
    }

    replay() {
        const {window} = this;
        const lists = window.ranks.map((rank) => this.actions(rank));
        const free = window.ranks.map(() => 0);
        const next = window.ranks.map(() => 0);
        for (let isMoving = true; isMoving;) {
            isMoving = false;
            window.ranks.forEach((rank, place) => {
                while (next[place] < lists[place].length && this.run(lists[place], next[place], free, place)) {
                    next[place]++;
                    isMoving = true;
                }
            });
        }
    }

    /* Keeps idle ticks of the plan, except where the rank is idle because of the transfer. */
    idleBefore(list, index, handoff) {
        const {plan, window} = this;
        const action = list[index];
        if (index === 0) {
            return Math.max(0, plan.start[action] - window.from);
        }
        return handoff ? 0 : plan.start[action] - plan.end[list[index - 1]];
    }

    run(list, index, free, place) {
        const {plan, window} = this;
        const action = list[index], handoff = this.handoff(action);
        const ready = handoff ? this.producerEnd(handoff.producer) : 0;
        if (ready === null) {
            return false;
        }
        const before = free[place] + this.idleBefore(list, index, handoff);
        let start = before;
        if (handoff && this.isOverlapped) {
            start = Math.max(before, ready + window.transfer);
            this.moves.push({...handoff, start: ready, end: ready + window.transfer, waits: Math.max(0, start - Math.max(before, ready))});
        } else if (handoff) {
            const begin = Math.max(before, ready);
            start = begin + window.transfer;
            this.hold(place, begin);
            this.moves.push({...handoff, start: begin, end: start, waits: window.transfer});
        }
        const end = start + plan.end[action] - plan.start[action];
        this.times.set(action, {start, end});
        free[place] = end;
        if (!this.isOverlapped && this.isSent(action)) {
            this.hold(place, end);
            free[place] = end + window.transfer;
        }
        return true;
    }

    hold(place, start) {
        this.held.push({rank: this.window.ranks[place], start, end: start + this.window.transfer});
    }

    /* Sent to the other rank, and read there within the window. */
    isSent(action) {
        const {plan, window} = this;
        const reader = plan.consumer(action);
        return reader >= 0 && plan.isRemote(reader) && window.ranks.includes(plan.rankOf[reader])
            && plan.start[reader] >= window.from - NEAR && plan.start[reader] < window.to + 1 - NEAR;
    }
}

/* One of the two executions as a figure. */
class ExecutionFigure {
    constructor(execution, title, length, width) {
        const {window} = execution;
        this.execution = execution;
        this.scale = (width - EXECUTION.left - 12) / length;
        this.tracks = execution.isOverlapped ? [[window.ranks[0], window.ranks[1]], [window.ranks[1], window.ranks[0]]] : [];
        const tracksHeight = this.tracks.length * EXECUTION.track;
        this.rowTop = window.ranks.map((_, place) => EXECUTION.head + place * (EXECUTION.row + EXECUTION.gap + tracksHeight));
        this.trackTop = EXECUTION.head + EXECUTION.row + EXECUTION.gap / 2;
        const height = this.rowTop[1] + EXECUTION.row + EXECUTION.axis;
        this.element = make("svg", {class: "execution", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title},
            make("text", {class: "name", x: 0, y: 15}, title), this.ground(length), this.held(), this.passes(), this.transfers(), this.axis(length, height));
    }

    x(time) {
        return EXECUTION.left + time * this.scale;
    }

    box(start, end, y, height, attributes) {
        return make("rect", {x: this.x(start).toFixed(1), y, width: Math.max(1, (end - start) * this.scale - 1.5).toFixed(1), height, rx: 2, ...attributes});
    }

    ground(length) {
        const tracks = this.tracks.map(([source, target], track) => make("text", {x: 0, y: this.trackTop + track * EXECUTION.track + 12}, `${source} \u2192 ${target}`));
        return [this.execution.window.ranks.map((rank, place) => [make("text", {x: 0, y: this.rowTop[place] + 20}, `rank ${rank}`),
            this.box(0, length, this.rowTop[place], EXECUTION.row, {style: "fill:var(--empty)"})]), tracks];
    }

    passes() {
        const {plan, times, moves, window} = this.execution;
        const beside = new Set(this.execution.isOverlapped ? moves.flatMap((move) => move.between) : []);
        return [...times].map(([action, time]) => {
            const name = palette.of(plan, action), y = this.rowTop[window.ranks.indexOf(plan.rankOf[action])];
            return [this.box(time.start, time.end, y, EXECUTION.row, {style: `fill:var(--${name})`}),
                beside.has(action) ? make("rect", {class: "beside", x: (this.x(time.start) + 2).toFixed(1), y: y + 2, rx: 2,
                    width: Math.max(1, (time.end - time.start) * this.scale - 5.5).toFixed(1), height: EXECUTION.row - 4, style: `stroke:var(--${name}-ink)`}) : null,
                make("text", {class: "label", x: ((this.x(time.start) + this.x(time.end)) / 2).toFixed(1), y: y + 20, style: `fill:var(--${name}-ink)`}, plan.label(action))];
        });
    }

    /* Both ranks wait while it moves. */
    held() {
        const {held, window} = this.execution;
        return held.map((span) => this.box(span.start, span.end, this.rowTop[window.ranks.indexOf(span.rank)] + 6, EXECUTION.row - 12, {style: "fill:var(--exposed)"}));
    }

    transfers() {
        if (!this.execution.isOverlapped) {
            return null;
        }
        const {plan, times, moves, window} = this.execution;
        return moves.map((move) => {
            const source = plan.rankOf[move.producer];
            const y = this.trackTop + this.tracks.findIndex(([from]) => from === source) * EXECUTION.track;
            const middle = y + 7, turn = move.end - move.waits;
            const level = (rank) => this.rowTop[window.ranks.indexOf(rank)] + (window.ranks.indexOf(rank) === 0 ? EXECUTION.row : 0);
            const reader = times.get(move.consumer);
            return [this.box(move.start, turn, y + 1, 12, {style: "fill:var(--hidden)", visibility: turn > move.start ? "visible" : "hidden"}),
                this.box(turn, move.end, y + 1, 12, {style: "fill:var(--exposed)", visibility: move.waits > 0 ? "visible" : "hidden"}),
                make("path", {class: `way ${move.class}`, d: `M${this.x(Math.max(0, move.start)).toFixed(1)} ${level(source)}V${middle}`
                    + `M${this.x(move.end).toFixed(1)} ${middle}H${this.x(reader.start).toFixed(1)}V${level(plan.rankOf[move.consumer])}`})];
        });
    }

    axis(length, height) {
        return niceMarks(0, length, 10).filter(Number.isInteger).map((mark) => make("text", {x: this.x(mark).toFixed(1), y: height - 4, "text-anchor": "middle"}, String(mark)));
    }
}

Object.assign(ScheduleView.prototype, {
    windowCard() {
        const most = this.plan.rankCount - 1;
        if (most < 1) {
            return null;
        }
        const change = () => this.drawWindow();
        this.pairInput = make("input", {type: "number", id: "pair", min: 0, max: most - 1, value: Math.min(this.shared.rank, most - 1), oninput: change});
        this.pairText = make("span");
        this.transferInput = make("input", {type: "number", id: "transfer", min: 0.1, max: 4, step: 0.1, value: 0.5, oninput: change});
        this.windowPart = make("div");
        return card("", make("h2", null, "A window, executed twice"), make("div", {class: "tools"},
            make("label", null, "Ranks", this.pairInput, this.pairText), make("label", null, "A transfer takes, ticks", this.transferInput)), this.windowPart);
    },

    drawWindow() {
        if (!this.windowPart) {
            return;
        }
        const plan = this.plan;
        const low = Math.max(0, Math.min(plan.rankCount - 2, Math.floor(Number(this.pairInput.value)) || 0));
        const window = {from: this.windowFrom(), to: Math.min(this.windowTo(), this.windowFrom() + 40), ranks: [low, low + 1],
            transfer: Math.max(0.05, Math.min(8, Number(this.transferInput.value) || 0.5))};
        this.pairText.textContent = `and ${low + 1}`;
        const without = new Execution(plan, window, false), beside = new Execution(plan, window, true);
        const length = Math.max(without.length, beside.length);
        const width = Math.max(560, EXECUTION.left + Math.min(1240, length * 90));
        const figures = [[without, "Without overlap: each transfer blocks both ranks"], [beside, "With overlap: each transfer is posted at once, and the consumer waits for it"]]
            .map(([execution, title]) => new ExecutionFigure(execution, title, length, width).element);
        const body = make("div", {class: "scroll wide", tabindex: 0, role: "region", "aria-label": "Two executions"}, figures);
        this.windowPart.replaceChildren(make("p", {class: "note", id: "window-note"}, `Ticks ${number(window.from)} to ${number(window.to)} of ranks ${low} and ${low + 1}, in the order of the plan; `
            + `a transfer takes ${ticks(window.transfer)}. ${ticks(without.length)} ticks without overlap, ${ticks(beside.length)} with it.`),
        body, this.windowLegend(), this.windowList(beside));
    },

    windowLegend() {
        const item = (color, text) => make("li", null, make("span", {class: "swatch", style: `background:var(--${color})`}), text);
        return make("ul", {class: "legend"}, item("hidden", "Transfer during independent work"), item("exposed", "Transfer that the receiver waits for"),
            make("li", null, make("span", {class: "swatch beside"}), "Independent action before the consumer"));
    },

    windowList(execution) {
        const plan = this.plan;
        const words = (move) => (move.between.length > 0
            ? `rank ${plan.rankOf[move.consumer]} runs ${move.between.slice(0, 3).map((action) => plan.label(action)).join(", ")}`
                + `${move.between.length > 3 ? ` and ${move.between.length - 3} more` : ""}, which ${move.between.length > 1 ? "do" : "does"} not consume it, before ${plan.label(move.consumer)}`
            : `${plan.label(move.consumer)} is the next that rank ${plan.rankOf[move.consumer]} runs: nothing else could be moved before it without another schedule`);
        const list = make("ul", {class: "ways", id: "window"}, execution.moves.sort((left, right) => plan.start[left.consumer] - plan.start[right.consumer]).map((move) => make("li", null,
            make("b", null, `${plan.label(move.producer)} \u2192 ${plan.label(move.consumer)} `), make("span", {class: `class-${move.class}`}, move.class),
            `: ${plan.kind[move.producer] === "F" ? "activation" : "activation gradient"}, rank ${plan.rankOf[move.producer]} to rank ${plan.rankOf[move.consumer]}; ${words(move)}.`)));
        return execution.moves.length > 0 ? list : make("p", {class: "note", id: "window"}, "Nothing moves between these two ranks in this window.");
    },
});
