/* numbers.js - the settings and results of one item, and of several side by side. */

/* "[section]" and "key = value ; origin" of the complete ini; help lines begin with a semicolon. */
function readConfig(text) {
    const rows = [];
    let section = "";
    for (const line of text.split("\n")) {
        const head = line.match(/^\[(.*)\]/);
        const pair = line.match(/^([a-z0-9_]+)\s*=\s*(.*?)(?:\s+;\s*(.*))?$/);
        if (head) {
            section = head[1];
        } else if (pair) {
            rows.push([`${section}.${pair[1]}`, pair[2], pair[3] || ""]);
        }
    }
    return rows;
}

function flat(value, prefix = "") {
    if (value === null || typeof value !== "object") {
        return [[prefix, value === null ? "\u2013" : String(value)]];
    }
    return Object.entries(value).flatMap(([key, inner]) => flat(inner, prefix ? `${prefix}.${key}` : key));
}

class NumbersView {
    constructor(shared, plan) {
        const item = plan.item;
        this.plan = plan;
        this.element = make("div", null,
            item.run ? this.runNumbers(item.run, item.metrics) : this.planNumbers(),
            item.metrics && item.metrics.step.length > 0 ? this.curves(item.metrics) : null,
            columns([item.run && item.run.ranks && item.run.ranks.length > 0 ? this.waits(item.run) : null, item.run && item.run.handoffs ? this.transfers(item.run) : null, this.memory(item.run),
                this.configuration(item.config)], [this.channels(item.run), item.run ? this.machine(item.run) : null]));
        shared.changed();
    }

    close() {}

    planNumbers() {
        const facts = this.plan.facts;
        return stats([
            ["Bubble", percent(facts.bubble), "planned, of the total"], ["Over ideal", percent(facts.bubble_over_ideal), "empty over busy"],
            ["Transfers", number(facts.transfers), "messages a step between ranks"], ["Bytes", bytes(facts.bytes_per_step), "a step between ranks"],
            ["Planned in", milliseconds(facts.plan_seconds * 1e3), `law 8 ${facts.ascending ? "kept" : "broken: outside the bitwise oracle"}`],
        ]);
    }

    runNumbers(run, metrics) {
        const losses = run.losses || [];
        return stats([
            ["Loss", number(losses[losses.length - 1], 4), `from ${number(losses[0], 4)}, nats a label`],
            ["Throughput", number(run.tokens_per_second), "tokens a second"],
            ["Step", milliseconds((run.step_seconds || {}).median * 1e3), `median; 90 % within ${milliseconds((run.step_seconds || {}).p90 * 1e3)}`],
            ["Bubble planned", percent(run.bubble.planned), `costed ${percent(run.bubble.costed)}`],
            ["Bubble measured", percent(run.bubble.measured), "mean from step 3 on"],
            run.overlap_efficiency ? ["Transfers hidden", percent(run.overlap_efficiency.measured), `costed ${percent(run.overlap_efficiency.costed)}`] : null,
            ["Steps", number(metrics ? metrics.step[metrics.step.length - 1] : losses.length), run.exit === 0 ? "finished" : run.exit === null ? "not finished" : `exit code ${run.exit}`],
        ]);
    }

    curves(metrics) {
        const every = metrics.every > 1 ? `, one in ${metrics.every} steps` : "";
        const names = ["step", "loss", "grad_norm", "learning_rate", "step_seconds", "tokens_per_second"];
        const data = dataTable("steps", names.map((name) => "#" + name.replaceAll("_", " ")), metrics.step.length,
            (i) => names.map((name) => (name === "step" ? String(metrics.step[i]) : metrics[name][i] === null ? "\u2013" : metrics[name][i].toPrecision(5))));
        return make("div", {class: "cards"},
            card(`Loss, nats a label, by step${every}`, lineChart("Loss by step", metrics.step, metrics.loss), data),
            card(`Tokens a second, by step${every}`, lineChart("Tokens a second by step", metrics.step, metrics.tokens_per_second)));
    }

    waits(run) {
        const rows = run.ranks.map((rank, place) => [`rank ${place}`, number(1e3 * rank.compute_seconds, 2), number(1e3 * rank.exposed_wait_seconds, 2),
            number(1e3 * rank.launch_seconds, 2), number(1e3 * (rank.resident_wait_seconds || 0), 2), number(rank.peak_payload_slots)]);
        return card("Time of each rank", scrolled(table("Milliseconds of a step, means; resident: in addition, the device kept occupied by a late peer",
            ["Rank", "#Compute", "#Exposed wait", "#Launch", "#Resident", "#Payload slots used"], rows), "Time"));
    }

    /* Planned and measured, by class of handoff. */
    transfers(run) {
        const number3 = (seconds) => number(seconds === null || seconds === undefined ? NaN : 1e3 * seconds, 3);
        const part = (half) => [number3(half.transfer_seconds), number3(half.hidden_seconds), number3(half.exposed_seconds)];
        const rows = ["local", "hidden", "exposed"].map((name) => [make("span", {class: `class-${name}`}, name), number(run.handoffs[name].count),
            ...part(run.handoffs[name].costed), ...part(run.handoffs[name].measured)]);
        const known = run.transfers.unknown > 0 ? `; ${number(run.transfers.unknown)} transfers are not in the sums: their times are unknown` : "";
        const words = `Milliseconds of a step, by the class of the handoff in the plan; costed: with the costs of [cost]; measured: ${
            run.transfers.steps > 0 ? `over the last ${counted(run.transfers.steps, "step")}` : "nothing was recorded"}${known}.`;
        const body = table("", ["Handoffs", "#Count", "#Costed", "#hidden", "#exposed", "#Measured", "#hidden", "#exposed"], rows);
        body.id = "transfers";
        return card("Transfers: hidden and exposed", make("p", {class: "note"}, words), scrolled(body, "Transfers"), make("p", {class: "note"}, this.hiddenInWords(run)));
    }

    hiddenInWords(run) {
        const {costed, measured} = run.overlap_efficiency;
        const kept = run.transfers.hidden_as_costed;
        return `Hidden of all transfer time: ${measured === null ? "unknown" : percent(measured)} measured, ${costed === null ? "none" : percent(costed)} costed.`
            + (kept === null ? "" : ` Of the time that the costed plan hides, ${percent(kept)} was hidden.`);
    }

    memory(run) {
        const facts = this.plan.facts;
        const measured = run && run.ranks && run.ranks.length > 0 ? run.ranks : null;
        const rows = facts.memory.map((row) => [`rank ${row.rank}`, number(facts.peak_copies[row.rank]), bytes(row.state_bytes), bytes(row.payload_bytes), bytes(row.transfer_bytes),
            bytes(row.total_bytes), ...(measured ? [bytes(measured[row.rank].peak_bytes)] : []),
            facts.budget_bytes === null || row.fits === null ? "" : make("span", {class: row.fits ? "class-hidden" : "class-exposed"}, row.fits ? "fits" : "over")]);
        const body = table(`Predicted ${facts.memory_source}${facts.budget_bytes === null ? "" : `; budget ${bytes(facts.budget_bytes)}`}`,
            ["Rank", "#Copies", "#State", "#Payload", "#Transfer", "#Total", ...(measured ? ["#Measured peak"] : []), ""], rows);
        body.id = "memory";
        return card("Memory", scrolled(body, "Memory"));
    }

    channels(run) {
        const facts = this.plan.facts;
        const lane = (channel) => ((run && run.channels) || []).find((other) => other.boundary === channel.boundary && other.direction === channel.direction
            && other.source === channel.source);
        const rows = facts.channels.map((channel) => [String(channel.boundary), channel.direction, `${channel.source} \u2192 ${channel.target}`,
            number(channel.depth), number(channel.slots), (lane(channel) || {}).lane || "\u2013"]);
        return card("Channels between ranks", scrolled(table("Depth: slots that the order needs; slots: those that it has",
            ["Boundary", "Direction", "Ranks", "#Depth", "#Slots", "Lane"], rows), "Channels"));
    }

    machine(run) {
        const kept = ["version", "commit", "command_line", "started", "hosts", "cpu", "devices", "compiler", "libraries", "environment", "corpus", "plan_hash", "parameters_hash", "exit"];
        const plugins = (run.plugins || []).map((plugin) => [`plugin ${plugin.kind}`, [[plugin.name, plugin.version].filter(Boolean).join(" "), plugin.path].filter(Boolean).join(", ")]);
        const rows = kept.filter((key) => key in run).flatMap((key) => flat(run[key], key)).filter((row) => row[0] !== "");
        const body = table("", ["What", "Is"], [...plugins, ...rows.map(([key, value]) => [key.replaceAll("_", " "), value])]);
        body.classList.add("keys");
        return card("Run and machine", scrolled(body, "Run and machine"));
    }

    configuration(text) {
        if (!text) {
            return null;
        }
        const rows = readConfig(text);
        const own = rows.filter((row) => !row[2].startsWith("default"));
        const body = table("Set by the file or the command line", ["Key", "Value", "Where"], own);
        body.id = "config";
        return card("Configuration", own.length > 0 ? scrolled(body, "Configuration") : make("p", {class: "note"}, "Every key has its default."),
            dataTable("all keys", ["key", "value", "where"], rows.length, (i) => rows[i]));
    }
}

class CompareView {
    constructor(shared, plans) {
        const peak = (plan) => Math.max(...plan.facts.peak_copies);
        const run = (plan) => plan.item.run || {};
        const last = (list) => (list && list.length > 0 ? list[list.length - 1] : null);
        const total = (plan) => Math.max(...plan.facts.memory.map((row) => (row.total_bytes === null ? NaN : row.total_bytes)));
        this.measures = [
            ["Ticks", (plan) => plan.facts.ticks, ticks], ["Bubble, planned", (plan) => plan.facts.bubble, percent],
            ["Bubble, measured", (plan) => (run(plan).bubble || {}).measured, percent],
            ["Transfers hidden, measured", (plan) => (run(plan).overlap_efficiency || {}).measured, percent],
            ["Copies, most of a rank", peak, number], ["Memory, most of a rank", total, (value) => bytes(Number.isFinite(value) ? value : null)],
            ["Transfers a step", (plan) => plan.facts.transfers, number], ["Bytes a step", (plan) => plan.facts.bytes_per_step, bytes],
            ["Handoffs exposed", (plan) => plan.facts.handoffs.exposed, number], ["Tokens a second", (plan) => run(plan).tokens_per_second, number],
            ["Step, median ms", (plan) => (run(plan).step_seconds ? 1e3 * run(plan).step_seconds.median : null), (value) => number(value, 2)],
            ["Loss at the end", (plan) => last(run(plan).losses), (value) => number(value, 4)],
        ].filter(([, get]) => plans.some((plan) => Number.isFinite(get(plan))));
        this.element = make("div", null, this.table(plans), this.bars(plans), this.differences(plans));
        shared.changed();
    }

    close() {}

    table(plans) {
        const rows = plans.map((plan) => [plan.item.name, ...this.measures.map(([, get, format]) => {
            const value = get(plan);
            return Number.isFinite(value) ? format(value) : "\u2013";
        })]);
        const body = table("", ["Plan or run", ...this.measures.map(([title]) => "#" + title)], rows);
        body.id = "compared";
        return card("", make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Compared"}, body));
    }

    /* One small figure for each measure, one bar for each item, from zero. */
    bars(plans) {
        return make("div", {class: "cards", id: "bars"}, this.measures.map(([title, get, format]) => {
            const values = plans.map(get);
            const most = Math.max(...values.filter(Number.isFinite), 0);
            return card(title, plans.map((plan, i) => make("div", null,
                make("div", {class: "tools", style: "justify-content:space-between;margin:4px 0 0;flex-wrap:nowrap"},
                    make("span", {style: "overflow-wrap:anywhere"}, plan.item.name), make("b", null, Number.isFinite(values[i]) ? format(values[i]) : "\u2013")),
                make("span", {class: "bar", hidden: !(values[i] > 0), style: `width:${most > 0 && values[i] > 0 ? (100 * values[i] / most).toFixed(2) : 0}%;background:var(--${plans.length <= 6 ? "r" + i : "f0"})`}))));
        }));
    }

    /* Keys whose values differ between the configurations. */
    differences(plans) {
        if (plans.some((plan) => !plan.item.config)) {
            return null;
        }
        const configs = plans.map((plan) => new Map(readConfig(plan.item.config)));
        const keys = [...new Set(configs.flatMap((config) => [...config.keys()]))];
        const rows = keys.map((key) => [key, ...configs.map((config) => config.get(key) ?? "\u2013")]).filter(([, ...values]) => new Set(values).size > 1);
        return card("Configurations differ in", rows.length === 0 ? make("p", {class: "note"}, "Nothing.")
            : scrolled(table("", ["Key", ...plans.map((plan) => plan.item.name)], rows), "Differences of configurations"));
    }
}
