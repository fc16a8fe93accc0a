"""The result as Markdown, JSON and SVG."""
import datetime
import html
import json
import operator
import os
import pathlib
import platform
import statistics

from measure import SLUICE, run

SIDE_ORDER = ("native", "native+put", "s3fs", "rclone", "sluice", "raw", "curl")
COLOURS = {"native": "#777777", "native+put": "#aaaaaa", "s3fs": "#d98c3f", "rclone": "#8a63b8", "sluice": "#2478c0", "raw": "#4f9f60",
           "curl": "#9fcf9f"}


def values(samples, field="seconds"):
    return [s[field] for s in samples if s.get(field) is not None]


def short(number):
    """Three digits that count."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def spread(numbers):
    """median (min-max)"""
    if not numbers:
        return "-"
    median = short(statistics.median(numbers))
    return median if len(numbers) == 1 else f"{median} ({short(min(numbers))}-{short(max(numbers))})"


def value_of(row):
    """The field of a sample that the row is about."""
    return "seconds" if row.unit == "s" else row.unit


def ratios(row, results, base):
    """Base over side, one a run; the base of a run is the fastest of those named, or the slowest if it begins with that word."""
    field = value_of(row)
    pick, bases = (max, base[1:]) if base[:1] == ("slowest",) else (min, base)
    found = []
    for i, sample in enumerate(results.get(row.of, [])):
        took = [results[b][i].get(field) for b in bases if b in results and i < len(results[b])]
        took = [t for t in took if t]
        if sample.get(field) and took and (pick is min or len(took) == len(bases)):
            found.append(pick(took) / sample[field])
    return found


def ratio_text(row, results, base):
    numbers = ratios(row, results, base)
    name = " and ".join(base[1:]) if base[:1] == ("slowest",) else " / ".join(base)
    return f"{name}: {spread(numbers)}" if numbers else ""


def fetched(row, results):
    """Bytes fetched / bytes read, one a run."""
    return [s["downloaded_bytes"] / s["bytes"] for s in results.get(row.of, []) if s.get("downloaded_bytes") is not None and s.get("bytes")]


def verdict(row, results):
    """Whether everything that the row asks for is met; not if a run failed. None: it asks for nothing, or something was not measured."""
    ours = results.get(row.of, [])
    asked = [(row.limit, values(ours, value_of(row)), operator.le), (row.bar, ratios(row, results, row.base), operator.ge),
             (row.also_bar, ratios(row, results, row.also), operator.ge), (row.fetch, fetched(row, results), operator.le),
             (row.stored, stored_shares(results), operator.ge)]
    asked = [(bound, numbers, holds) for bound, numbers, holds in asked if bound]
    if asked and any("error" in s for s in ours):
        return False
    met = [holds(statistics.median(numbers), bound) for bound, numbers, holds in asked if numbers]
    return False if False in met else True if asked and len(met) == len(asked) else None


def bar_text(row):
    asked = [(row.limit, f"at most {row.limit} {row.unit}"), (row.bar, f"{row.bar}"), (row.also_bar, f"{row.also_bar} to {' / '.join(row.also)}"),
             (row.fetch, f"fetched at most {row.fetch} times"), (row.stored, f"stored at least {row.stored}")]
    return "; ".join(text for bound, text in asked if bound)


def cell(row, samples):
    if not samples:
        return ""
    errors = [s["error"] for s in samples if "error" in s]
    numbers = values(samples, value_of(row))
    text = spread(numbers) if numbers else ""
    return (text + (" failed: " + errors[0] if errors else "")).replace("|", "/").replace("\n", " ").strip()


def markdown(bench):
    sides = [s for s in SIDE_ORDER if any(s in r for r in bench.results.values())]
    m = machine()
    lines = [f"{m['sluice']} on Linux {m['kernel']}, {m['cpus']} CPUs, {m['memory_bytes'] >> 30} GiB; server CPU: {m['server_cpus']}, "
             f"CPU of clients and daemons: {m['client_cpus']}; runs: {bench.runs}.", "",
             "Medians (min-max) of seconds unless the row says otherwise. Ratios, one a run: seconds of the side named (of several the fastest, of",
             "\"A and B\" the slower) / seconds of sluice, of raw where there is no filesystem; more is better. Cold rows drop the client's",
             "caches, not the server's.", "",
             "| row | what | in the cache before | " + " | ".join(sides) + " | ratio to | bar | met | ratio also to |",
             "|---" * (len(sides) + 7) + "|"]
    for row in bench.rows:
        results = bench.results[row.name]
        if row.name in bench.skipped:
            lines.append(f"| {row.name} | {row.title} | skipped: {bench.skipped[row.name]} |" + " |" * (len(sides) + 4))
            continue
        met = {True: "yes", False: "**no**", None: ""}[verdict(row, results)]
        unit = "" if row.unit == "s" else f" ({row.unit})"
        lines.append(f"| {row.name} | {row.title}{unit} | {row.warm} | " + " | ".join(cell(row, results.get(s)) for s in sides) +
                     f" | {ratio_text(row, results, row.base)} | {bar_text(row)} | {met} | {ratio_text(row, results, row.also)} |")
    return "\n".join(lines + costs(bench) + notes(bench) + times(bench)) + "\n"


def times(bench):
    """When which rows were measured, if not all in one run."""
    runs = {}
    for row in bench.rows:
        if row.name in bench.when:
            runs.setdefault(bench.when[row.name], []).append(row.name)
    return [] if len(runs) < 2 else ["", "Measured in several runs:", ""] + [f"- {when}: {' '.join(names)}" for when, names in sorted(runs.items())]


def costs(bench):
    """CPU seconds and memory, where they were measured."""
    lines = ["", "CPU seconds of client and daemon, peak memory of the daemon in MiB (medians):", "",
             "| row | side | client | daemon | memory | mode |", "|---|---|---|---|---|---|"]
    for row in bench.rows:
        for side in SIDE_ORDER:
            samples = bench.results[row.name].get(side, [])
            client, daemon = values(samples, "client_cpu"), values(samples, "daemon_cpu")
            if client or daemon:
                lines.append(f"| {row.name} | {side} | {middle(client, 2)} | {middle(daemon, 2)} | "
                             f"{middle(values(samples, 'daemon_peak_mib'), 0)} | {modes(samples)} |")
    return lines


def modes(samples):
    """Those of all runs."""
    return ", ".join(dict.fromkeys(s["mode"] for s in samples if s.get("mode")))


def middle(numbers, digits):
    return f"{statistics.median(numbers):.{digits}f}" if numbers else ""


def stored_shares(results):
    """One a run: what Sluice had stored at close / what the raw PUT of that run stores in the time of the write, at most all of it."""
    found = []
    for ours, raw in zip(results.get("sluice", []), results.get("raw", [])):
        if "uploaded_at_close" in ours and "seconds" in raw:
            possible = min(ours["bytes"], raw["bytes"] / raw["seconds"] * ours["seconds"])
            found.append(ours["uploaded_at_close"] / possible)
    return found


def notes(bench):
    lines = [""]
    for row in bench.rows:
        for side, samples in bench.results[row.name].items():
            for field, text in (("uploaded_at_close", "bytes were in the store when close returned"),
                                ("sent_at_close", "bytes were sent when close returned"),
                                ("downloaded_bytes", "bytes were fetched"), ("load_bytes_per_s", "bytes a second were uploaded beside")):
                if values(samples, field):
                    lines.append(f"- {row.name}, {side}: {spread(values(samples, field))} {text}; "
                                 f"{values(samples, 'bytes')[0]} bytes in all")
        shares = stored_shares(bench.results[row.name])
        fastest = sorted({s["threads"] for s in bench.results[row.name].get("raw", []) if "threads" in s})
        if row.raw and len(row.raw.threads) > 1 and fastest:
            lines.append(f"- {row.name}, raw: the fastest of {', '.join(map(str, row.raw.threads))} at a time: {', '.join(map(str, fastest))}")
        if shares:
            lines.append(f"- {row.name}, sluice: {spread(shares)} of what a raw PUT stores in that time were stored when close returned")
    p50, took = ({link: middle(values(bench.results.get(f"{row}-{link}", {}).get("raw", []), field), 4) for link in ("near", "far")}
                 for row, field in (("delay", "p50_ms"), ("rate", "seconds")))
    if p50["near"] and p50["far"]:
        lines.append(f"- the relay: a request takes {float(p50['far']) - float(p50['near']):.1f} ms longer behind it")
    if took["near"] and took["far"]:
        lines.append(f"- the relay: the rate behind it is {float(took['near']) / float(took['far']):.2f} of the direct one")
    return lines


def machine():
    return {"sluice": run(SLUICE, "version").strip(), "kernel": platform.release(), "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "server_cpus": os.environ["BENCH_SERVER_CPUS"] if os.environ.get("BENCH_OWN_GATEWAY") else "not pinned",
            "client_cpus": ",".join(str(c) for c in sorted(os.sched_getaffinity(0)))}


def as_json(bench):
    rows = []
    for row in bench.rows:
        numbers = ratios(row, bench.results[row.name], row.base)
        rows.append({"name": row.name, "title": row.title, "in_cache_before": row.warm, "unit": row.unit, "link": row.link,
                     "options": row.options, "skipped": bench.skipped.get(row.name), "of": row.of, "base": row.base, "bar": row.bar or None,
                     "ratios": numbers, "median_ratio": statistics.median(numbers) if numbers else None,
                     "limit": row.limit or None, "met": verdict(row, bench.results[row.name]), "also": row.also, "also_ratios": ratios(row, bench.results[row.name], row.also),
                     "also_bar": row.also_bar or None, "fetch": row.fetch or None, "stored": row.stored or None,
                     "when": bench.when.get(row.name), "samples": bench.results[row.name]})
    return {"when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(), "runs": bench.runs,
            "sizes": vars(bench.sizes), "rows": rows}


def earlier(bench, out):
    """Samples and times by row of the report in the directory out; ends the program if it was made elsewhere or with other sizes."""
    path = out / "bench.json"
    if not path.exists():
        return {}, {}
    found = json.loads(path.read_text())
    for what, have, want in (("on another machine", found["machine"], machine()), ("with other sizes", found["sizes"], vars(bench.sizes))):
        if have != want:
            raise SystemExit(f"{path} was made {what}: {have}, now {want}; give another --out, or leave out --resume")
    rows = [r for r in found["rows"] if any(r["samples"].values())]
    return {r["name"]: r["samples"] for r in rows}, {r["name"]: r["when"] for r in rows}


def svg(bench):
    """Horizontal bars, a group per row, each group scaled to its slowest side; the thin line goes from the best run to the worst. Sides that take no part
    in a row have none; those that failed say so."""
    left, width, step, y, out = 90, 600, 16, 40, []
    for row in bench.rows:
        shown = {s: bench.results[row.name][s] for s in SIDE_ORDER if bench.results[row.name].get(s)}
        if not shown:
            continue
        out.append(f'<text x="10" y="{y}" font-weight="bold">{html.escape(row.title)}</text>')
        most = max((v for samples in shown.values() for v in values(samples, value_of(row))), default=0)
        for side, samples in shown.items():
            y += step
            out.append(f'<text x="{left - 5}" y="{y}" text-anchor="end">{side}</text>' +
                       bar(values(samples, value_of(row)), width / (most or 1), left, y, COLOURS[side], row.unit))
        y += 2 * step
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{y}" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/><text x="10" y="18">shorter is better; medians, runs: {bench.runs}</text>' +
            "\n".join(out) + "</svg>\n")


def bar(numbers, scale, left, y, colour, unit):
    if not numbers:
        return f'<text x="{left}" y="{y}">failed</text>'
    median, least, most = statistics.median(numbers), min(numbers), max(numbers)
    return (f'<rect x="{left}" y="{y - 10}" width="{max(1, median * scale):.1f}" height="12" fill="{colour}"/>'
            f'<rect x="{left + least * scale:.1f}" y="{y - 4}" width="{(most - least) * scale:.1f}" height="1"/>'
            f'<text x="{left + most * scale + 6:.1f}" y="{y}">{short(median)} {unit}</text>')


def write(bench, out):
    """Leaves bench.md, bench.json and bench.svg in the directory out; gives the Markdown."""
    text = markdown(bench)
    for name, content in (("bench.md", text), ("bench.json", json.dumps(as_json(bench), indent=1) + "\n"), ("bench.svg", svg(bench))):
        tmp = pathlib.Path(out) / (name + ".new")
        tmp.write_text(content)
        tmp.rename(pathlib.Path(out) / name)
    return text
