/* schedule.js - the plan: its grid, copies, payload slots, a followed microbatch, handoffs. */

const AXIS = 18, COPIES_HEIGHT = 150, SLOT_ROW_MOST = 20, GRID_MOST = 960, HANDOFF_MOST = 150;
/* With more ranks than LINES_MOST, copies are drawn as one band, and tables wait REST_MS after the cursor moves. */
const LINES_MOST = 16, REST_MS = 80;

class ScheduleView {
    constructor(shared, plan) {
        this.shared = shared;
        this.plan = plan;
        shared.tick = Math.min(shared.tick, this.tickCount - 1);
        shared.rank = Math.min(shared.rank, plan.rankCount - 1);
        shared.stage = Math.min(shared.stage, plan.stageCount - 1);
        this.row = rowHeight(plan.rankCount);
        this.rowsShown = Math.min(plan.rankCount, Math.floor(GRID_MOST / this.row));
        this.firstRow = 0;
        this.copyTop = Math.max(...plan.facts.peak_copies, 1);
        this.budgets = plan.facts.peak_copies.map((_, rank) => plan.budgetCopies(rank));
        this.pool = plan.leases(shared.stage);
        this.build();
    }

    get tickCount() {
        return Math.max(1, Math.ceil(this.plan.length - NEAR));
    }

    build() {
        const {plan, shared} = this;
        this.timeline = new Timeline({
            span: plan.length, zoomMost: 90, zoomFirst: plan.length <= 240 ? ZOOM_LABEL : 0,
            label: "Grid of actions: ranks down, ticks across. Arrow keys move the cursor, Enter follows a microbatch.",
            cursor: () => ({from: shared.tick, to: shared.tick + 1}),
            onPick: (place, time, y) => this.pick(place, time, y),
            onKey: (event) => this.onKey(event),
            tip: (place, time, y) => this.tip(place, time, y),
            panels: [
                {height: () => AXIS + this.rowsShown * this.row, draw: (...all) => this.drawGrid(...all), over: (...all) => this.overGrid(...all),
                    key: () => [shared.follow, this.firstRow, this.marks.checked].join()},
                {title: this.copiesTitle(), height: () => COPIES_HEIGHT, draw: (...all) => this.drawCopies(...all), over: (...all) => this.overPanel(...all),
                    key: () => shared.rank},
                {title: "", height: () => this.slotRow * this.slotCount + 6, draw: (...all) => this.drawSlots(...all), over: (...all) => this.overPanel(...all),
                    key: () => [shared.stage, shared.follow].join()},
            ],
        });
        this.poolTitle = make("p", {class: "panel-title"});
        this.timeline.canvases[2].before(this.poolTitle);
        this.atTick = make("div");
        this.poolPart = make("div");
        this.followPart = make("div");
        this.handoffPart = make("div");
        this.element = make("div", null, this.numbers(),
            card("", this.tools(), this.timeline.element, this.legend(), this.gridData()),
            columns([card("", this.atTick), card("", this.followTools(), this.followPart)],
                [card("", this.poolTools(), this.poolPart), card("", this.handoffTools(), this.handoffPart)]),
            this.windowCard());
        this.refreshTables();
        this.refresh();
    }

    close() {
        cancelAnimationFrame(this.frame);
        clearTimeout(this.rest);
        this.timeline.close();
    }

    numbers() {
        const facts = this.plan.facts;
        const handoffs = facts.handoffs;
        const classes = this.plan.isCosted
            ? [`${ticks(facts.exposed_ticks)} exposed`, `of ${ticks(facts.transfer_ticks)} ticks of transfers; ${number(handoffs.local)} local`]
            : [`${number(handoffs.local)} \u00b7 ${number(handoffs.hidden)} \u00b7 ${number(handoffs.exposed)}`, "local, hidden, exposed"];
        const copies = facts.peak_copies;
        return stats([
            ["Length", ticks(facts.ticks) + " ticks", `${facts.timeline}; symbolic, not measured`],
            ["Empty ticks", `${ticks(facts.empty_ticks)} / ${ticks(facts.total_ticks)}`, "of all ranks"],
            ["Bubble", percent(facts.bubble), percent(facts.bubble_over_ideal) + " over ideal"],
            ["Peak copies", copies.length <= 8 ? copies.join(" \u00b7 ") : `${Math.min(...copies)} to ${Math.max(...copies)}`,
                copies.length === 1 ? "of the rank" : `ranks 0 to ${copies.length - 1}`],
            ["Handoffs", ...classes],
            ["Loss", `rank ${facts.loss_rank}`, `stage ${facts.stages - 1}; ${facts.placement} placement`],
        ]);
    }

    copiesTitle() {
        const lines = this.plan.rankCount <= 6 ? this.plan.facts.peak_copies.map((_, rank) => make("span", {class: "line"},
            make("span", {class: "stroke", style: `background:var(--r${rank})`}), `rank ${rank}`))
            : [make("span", {class: "line"}, make("span", {class: "stroke", style: "background:var(--accent)"}), "the chosen rank"),
                this.plan.rankCount > LINES_MOST ? make("span", {class: "line"}, make("span", {class: "stroke", style: "background:var(--strong)"}), "all ranks, least to most") : null];
        return ["Copies held after each tick: forwards whose payload is still needed", lines];
    }

    tools() {
        const zoom = (text, factor, title) => make("button", {type: "button", title, "aria-label": title,
            onclick: () => this.timeline.zoom(factor)}, text);
        this.slider = make("input", {type: "range", id: "tick", min: 0, max: this.tickCount - 1, step: 1,
            oninput: () => this.moveTo(Number(this.slider.value))});
        this.sliderText = make("output", {for: "tick"});
        this.marks = make("input", {type: "checkbox", id: "marks", onchange: () => this.timeline.invalidate()});
        this.marks.checked = true;
        const rows = this.rowsShown < this.plan.rankCount ? make("label", null, "First rank", make("input", {type: "number",
            min: 0, max: this.plan.rankCount - this.rowsShown, value: 0, oninput: (event) => {
                this.firstRow = Math.max(0, Math.min(Number(event.target.value), this.plan.rankCount - this.rowsShown));
                this.timeline.invalidate();
            }})) : null;
        return make("div", {class: "tools"},
            make("label", {class: "grow"}, "Tick", this.slider, this.sliderText),
            make("span", {class: "group"}, zoom("\u2212", 1 / 1.5, "Zoom out"), zoom("+", 1.5, "Zoom in"), zoom("Whole", 0, "Fit the whole plan")),
            make("label", null, this.marks, "Handoffs"), rows);
    }

    legend() {
        const plan = this.plan;
        const words = {F: "Forward", B: "Backward", I: "Input gradient", W: "Weight gradient"};
        const halves = plan.stageCount > plan.rankCount ? [0, 1] : [0];
        const middle = Math.ceil(plan.stageCount / 2);
        const stages = (half) => plan.stageCount === 1 ? "stage 0" : halves.length === 1 ? `stages 0\u2013${plan.stageCount - 1}`
            : half === 0 ? `stages 0\u2013${middle - 1}` : `stages ${middle}\u2013${plan.stageCount - 1}`;
        const item = (color, text) => make("li", null, make("span", {class: "swatch", style: `background:var(--${color})`}), text);
        return make("ul", {class: "legend"},
            ["F", "B", "I", "W"].filter((kind) => plan.kind.includes(kind)).flatMap((kind) => halves.map(
                (half) => item(kind.toLowerCase() + half, `${words[kind]}, ${stages(half)}`))),
            item("empty", "Empty tick"), item("hidden", "Handoff with independent work before its consumer"),
            item("exposed", "Handoff that the receiver waits for"),
            this.budgets.some((budget) => budget !== null) ? item("budget", "Memory budget") : null);
    }

    rows() {
        return {times: this.plan, top: AXIS, height: this.row, first: this.firstRow, count: this.rowsShown, isTicks: true};
    }

    drawGrid(context, timeline, width, height) {
        const {plan, shared} = this;
        drawAxis(context, timeline, width, (tick) => String(tick), 0.5);
        clipped(context, width, height, () => {
            this.drawEmpty(context, timeline);
            const marks = this.marks.checked;
            drawRows(context, timeline, plan, {...this.rows(),
                isFaint: (action) => shared.follow >= 0 && plan.microbatch[action] !== shared.follow,
                isMarked: (action) => shared.follow >= 0 && plan.microbatch[action] === shared.follow && timeline.scale > 4,
                after: (action, box) => marks && this.drawMark(context, action, box)});
            if (shared.follow >= 0) {
                this.drawFollowed(context, timeline);
            }
        });
    }

    overGrid(context, timeline, width, height) {
        clipped(context, width, height, () => drawCursor(context, timeline, height, AXIS));
        drawNames(context, this.plan, this.rows(), this.shared.rank);
    }

    overPanel(context, timeline, width, height) {
        clipped(context, width, height, () => drawCursor(context, timeline, height));
    }

    /* The whole row in the colour of empty ticks, divided into ticks if there is room. */
    drawEmpty(context, timeline) {
        const from = Math.max(0, Math.floor(timeline.timeAt(LEFT)));
        const to = Math.min(this.plan.length, Math.ceil(timeline.timeAt(timeline.width)));
        for (let place = 0; place < this.rowsShown; place++) {
            const y = AXIS + place * this.row + 1;
            context.fillStyle = palette.empty;
            context.fillRect(timeline.xAt(0), y, this.plan.length * timeline.scale, this.row - 2);
        }
        if (timeline.scale >= 5) {
            context.fillStyle = palette.card;
            for (let tick = from; tick <= to; tick++) {
                context.fillRect(timeline.xAt(tick) - 0.5, AXIS, 1, this.rowsShown * this.row);
            }
        }
    }

    /* A corner of the consumer shows the class of its input. */
    drawMark(context, action, box) {
        const name = this.plan.handoffClass(action);
        if ((name === "hidden" || name === "exposed") && box.width >= 8 && box.height < 14) {
            context.fillStyle = palette[name]; /* a square for small cells: a path takes ten times as long */
            context.fillRect(box.x, box.y, 4, 4);
        } else if ((name === "hidden" || name === "exposed") && box.width >= 8) {
            const side = Math.min(8, box.height / 2.5, box.width / 2);
            for (const [color, length] of [["card", side + 2], [name, side]]) {
                context.fillStyle = palette[color];
                context.beginPath();
                context.moveTo(box.x, box.y);
                context.lineTo(box.x + length, box.y);
                context.lineTo(box.x, box.y + length);
                context.fill();
            }
        }
    }

    /* The path of the followed microbatch, and how long each stage holds its payload. */
    drawFollowed(context, timeline) {
        const {plan, shared} = this;
        const y = (action) => AXIS + (plan.rankOf[action] - this.firstRow + 0.5) * this.row;
        const steps = this.followed();
        context.lineWidth = Math.max(2, this.row / 9);
        context.strokeStyle = palette.accent;
        context.globalAlpha = 0.55;
        for (let stage = 0; stage < plan.stageCount; stage++) {
            const forward = plan.find(0, stage, shared.follow);
            const release = plan.release(stage, shared.follow);
            if (forward >= 0 && release > forward) {
                const level = y(forward) + this.row / 2 - 3 - (stage >= plan.rankCount ? context.lineWidth + 1 : 0);
                context.beginPath();
                context.moveTo(timeline.xAt(plan.end[forward]), level);
                context.lineTo(timeline.xAt(plan.start[release]), level);
                context.stroke();
            }
        }
        context.globalAlpha = 1;
        context.lineWidth = 1.5;
        context.strokeStyle = palette.ink;
        context.beginPath();
        for (let i = 1; i < steps.length; i++) {
            context.moveTo(timeline.xAt(plan.end[steps[i - 1]]), y(steps[i - 1]));
            context.lineTo(timeline.xAt(plan.start[steps[i]]), y(steps[i]));
        }
        context.stroke();
    }

    /* Its forwards by ascending stage, then its backwards by descending stage. */
    followed() {
        const {plan, shared} = this;
        const stages = Array.from({length: plan.stageCount}, (_, stage) => stage);
        return [...stages.map((stage) => plan.find(0, stage, shared.follow)),
            ...stages.reverse().map((stage) => plan.find(1, stage, shared.follow))].filter((action) => action >= 0);
    }

    drawCopies(context, timeline, width, height) {
        const {plan, shared} = this;
        const budgets = this.budgets.filter((budget) => budget !== null);
        const most = Math.max(this.copyTop, ...budgets.map((budget) => Math.min(budget, 3 * this.copyTop))) * 1.06;
        const y = (copies) => height - 8 - (height - 16) * copies / most;
        context.font = `12px ${FONT}`;
        context.textAlign = "right";
        for (const mark of niceMarks(0, most, 4).filter(Number.isInteger)) {
            context.fillStyle = palette.line;
            context.fillRect(LEFT, Math.round(y(mark)), width - LEFT, 1);
            context.fillStyle = palette.muted;
            context.fillText(String(mark), LEFT - 10, y(mark) + 4);
        }
        clipped(context, width, height, () => {
            const isBand = plan.rankCount > LINES_MOST;
            if (isBand) {
                this.drawBand(context, timeline, width, y);
            }
            for (let place = isBand ? plan.rankCount : 1; place <= plan.rankCount; place++) {
                this.drawHeld(context, timeline, (shared.rank + place) % plan.rankCount, y);
            }
            this.drawBudget(context, width, y);
        });
    }

    /* The fewest and the most copies of any rank, for each column of pixels. */
    drawBand(context, timeline, width, y) {
        const plan = this.plan, tick = plan.isCosted ? 0 : 1;
        const last = Math.min(width, timeline.xAt(plan.length));
        const columns = Math.max(0, Math.ceil(last - LEFT));
        const least = new Int32Array(columns).fill(1 << 30), most = new Int32Array(columns);
        for (let rank = 0; rank < plan.rankCount; rank++) {
            let action = Math.max(plan.begin[rank] - 1, plan.last(plan.end, rank, timeline.timeAt(LEFT) + tick));
            for (let column = 0; column < columns; column++) {
                const until = timeline.timeAt(LEFT + column + 1) + tick;
                let held = action >= plan.begin[rank] ? plan.held[action] : 0;
                least[column] = Math.min(least[column], held);
                most[column] = Math.max(most[column], held);
                while (action + 1 < plan.begin[rank + 1] && plan.end[action + 1] <= until) {
                    held = plan.held[++action];
                    least[column] = Math.min(least[column], held);
                    most[column] = Math.max(most[column], held);
                }
            }
        }
        context.fillStyle = palette.strong;
        context.globalAlpha = 0.45;
        for (let column = 0; column < columns; column++) {
            context.fillRect(LEFT + column, y(most[column]) - 1, 1, y(least[column]) - y(most[column]) + 2);
        }
        context.globalAlpha = 1;
    }

    drawHeld(context, timeline, rank, y) {
        const plan = this.plan;
        const tick = plan.isCosted ? 0 : 1; /* the copies after a tick are drawn over that tick */
        const isChosen = rank === this.shared.rank;
        const to = timeline.timeAt(timeline.width);
        let action = Math.max(plan.begin[rank] - 1, plan.last(plan.end, rank, timeline.timeAt(LEFT) + tick));
        let level = action >= plan.begin[rank] ? plan.held[action] : 0;
        context.strokeStyle = plan.rankCount <= 6 ? palette["r" + rank] : isChosen ? palette.accent : palette.strong;
        context.globalAlpha = isChosen ? 1 : plan.rankCount <= 6 ? 0.75 : 0.45;
        context.lineWidth = isChosen ? 3 : 1.5;
        context.lineJoin = "bevel";
        context.beginPath();
        context.moveTo(LEFT, y(level));
        const least = isChosen || plan.rankCount <= 6 ? 0.5 : 2; /* pixels between two drawn steps */
        let drawn = -Infinity;
        for (action++; action < plan.begin[rank + 1] && plan.end[action] <= to + 2; action++) {
            const x = timeline.xAt(plan.end[action] - tick);
            if (x - drawn >= least) {
                context.lineTo(x, y(level));
                level = plan.held[action];
                context.lineTo(x, y(level));
                drawn = x;
            } else {
                level = plan.held[action];
            }
        }
        context.lineTo(timeline.xAt(Math.min(plan.length, to)), y(level));
        context.stroke();
        context.globalAlpha = 1;
    }

    /* The budget of the chosen rank, because ranks may have different sizes. */
    drawBudget(context, width, y) {
        const budget = this.budgets[this.shared.rank];
        if (budget === null || budget === undefined) {
            return;
        }
        const level = y(Math.max(0, budget));
        const text = `budget ${bytes(this.plan.facts.budget_bytes)} = ${number(budget, 1)} copies`;
        context.strokeStyle = palette.budget;
        context.lineWidth = 1.5;
        context.setLineDash([6, 4]);
        context.beginPath();
        context.moveTo(LEFT, level);
        context.lineTo(width, level);
        context.stroke();
        context.setLineDash([]);
        context.textAlign = "right";
        context.font = `600 12px ${FONT}`;
        const wide = context.measureText(text).width;
        context.fillStyle = palette.card;
        context.fillRect(width - RIGHT - wide - 4, level - 17, wide + 8, 15);
        context.fillStyle = palette.budget;
        context.fillText(text, width - RIGHT, level - 5);
    }

    get slotCount() {
        return Math.max(1, this.pool.reduce((most, lease) => Math.max(most, lease.slot + 1), 0));
    }

    get slotRow() {
        return Math.max(1.5, Math.min(SLOT_ROW_MOST, 220 / this.slotCount));
    }

    get slotGap() {
        return this.slotRow >= 6 ? 1 : 0;
    }

    drawSlots(context, timeline, width, height) {
        const {plan, shared} = this;
        const row = this.slotRow;
        context.textBaseline = "middle";
        clipped(context, width, height, () => {
            for (let slot = 0; slot < this.slotCount; slot++) {
                context.fillStyle = palette.empty;
                context.fillRect(timeline.xAt(0), slot * row + this.slotGap, plan.length * timeline.scale, row - 2 * this.slotGap);
            }
            for (const lease of this.pool) {
                this.drawLease(context, timeline, lease, row);
            }
        });
        context.textAlign = "right";
        context.fillStyle = palette.muted;
        context.font = `12px ${FONT}`;
        for (let slot = 0; slot < this.slotCount && row >= 12; slot++) {
            context.fillText(`slot ${slot}`, LEFT - 10, slot * row + row / 2);
        }
        context.textBaseline = "alphabetic";
    }

    /* Its forward, the time between, and its backward. */
    drawLease(context, timeline, lease, row) {
        const {plan, shared} = this;
        const from = timeline.xAt(plan.start[lease.forward]), to = timeline.xAt(plan.end[lease.release]);
        if (to < LEFT || from > timeline.width) {
            return;
        }
        const y = lease.slot * row + this.slotGap, height = row - 2 * this.slotGap;
        context.globalAlpha = shared.follow >= 0 && lease.microbatch !== shared.follow ? 0.25 : 1;
        context.fillStyle = palette["accent-soft"];
        context.fillRect(from, y, to - from - 1, height);
        for (const action of [lease.forward, lease.release]) {
            const x = timeline.xAt(plan.start[action]);
            context.fillStyle = palette[palette.of(plan, action)];
            context.fillRect(x, y, timeline.xAt(plan.end[action]) - x - 1, height);
        }
        if (row >= 12 && to - from > 40) {
            context.fillStyle = palette.ink;
            context.font = `12px ${FONT}`;
            context.textAlign = "center";
            const left = Math.max(LEFT, timeline.xAt(plan.end[lease.forward])), right = Math.min(timeline.width, timeline.xAt(plan.start[lease.release]));
            if (right - left > 20) {
                context.fillText(right - left > 100 ? `microbatch ${lease.microbatch}` : String(lease.microbatch), (left + right) / 2, y + height / 2);
            }
        }
        context.globalAlpha = 1;
    }
}
