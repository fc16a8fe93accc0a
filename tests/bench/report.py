"""The result as Markdown, JSON and SVG."""
import datetime
import html
import json
import os
import pathlib
import platform
import statistics

SIDE_ORDER = ("native", "native+put", "s3fs", "rclone", "sluice", "raw", "curl")
COLOURS = {"native": "#777777", "native+put": "#aaaaaa", "s3fs": "#d98c3f", "rclone": "#8a63b8", "sluice": "#2478c0", "raw": "#4f9f60",
           "curl": "#9fcf9f"}


def values(samples, field="seconds"):
    return [s[field] for s in samples if field in s]


def spread(numbers, digits=2):
    """median (min-max)"""
    if not numbers:
        return "-"
    middle = f"{statistics.median(numbers):.{digits}f}"
    return middle if len(numbers) == 1 else f"{middle} ({min(numbers):.{digits}f}-{max(numbers):.{digits}f})"


def ratios(row, results):
    """Base over side, one a run; the base of a run is the fastest of row.base, or the slowest if that says so."""
    pick, bases = (max, row.base[1:]) if row.base[:1] == ("slowest",) else (min, row.base)
    found = []
    for i, sample in enumerate(results.get(row.of, [])):
        base = [results[b][i].get("seconds") for b in bases if b in results and i < len(results[b])]
        base = [b for b in base if b]
        if sample.get("seconds") and base and (pick is min or len(base) == len(bases)):
            found.append(pick(base) / sample["seconds"])
    return found


def verdict(row, numbers):
    if not row.bar or not numbers:
        return ""
    return "yes" if statistics.median(numbers) >= row.bar else "**no**"


def cell(samples):
    if not samples:
        return ""
    errors = [s["error"] for s in samples if "error" in s]
    text = spread(values(samples)) if values(samples) else ""
    return (text + (" failed: " + errors[0] if errors else "")).replace("|", "/").replace("\n", " ").strip()


def markdown(bench):
    sides = [s for s in SIDE_ORDER if any(s in r for r in bench.results.values())]
    lines = ["Medians (min-max); seconds unless the row says otherwise. Ratio: seconds of the base / seconds of the side named, per run, so that",
             "more is better. Cold rows drop the client's caches, not the server's.", "",
             "| row | in the cache before | " + " | ".join(sides) + " | ratio | bar | met |", "|---" * (len(sides) + 5) + "|"]
    for row in bench.rows:
        results = bench.results[row.name]
        if row.name in bench.skipped:
            lines.append(f"| {row.title} | skipped: {bench.skipped[row.name]} |" + " |" * (len(sides) + 3))
            continue
        numbers = ratios(row, results)
        base = f"{row.of} to {' / '.join(row.base)}: {spread(numbers)}" if numbers else ""
        unit = "" if row.unit == "s" else f" ({row.unit})"
        lines.append(f"| {row.title}{unit} | {row.warm} | " + " | ".join(cell(results.get(s)) for s in sides) +
                     f" | {base} | {row.bar or ''} | {verdict(row, numbers)} |")
    return "\n".join(lines + costs(bench) + notes(bench)) + "\n"


def costs(bench):
    """CPU seconds and memory, where they were measured."""
    lines = ["", "CPU seconds of client and daemon, peak memory of the daemon in MiB (medians):", "",
             "| row | side | client | daemon | memory | mode |", "|---|---|---|---|---|---|"]
    for row in bench.rows:
        for side in SIDE_ORDER:
            samples = bench.results[row.name].get(side, [])
            if values(samples):
                client, daemon = values(samples, "client_cpu"), values(samples, "daemon_cpu")
                lines.append(f"| {row.name} | {side} | {middle(client, 2)} | {middle(daemon, 2)} | "
                             f"{middle(values(samples, 'daemon_peak_mib'), 0)} | {samples[-1].get('mode') or ''} |")
    return lines


def middle(numbers, digits):
    return f"{statistics.median(numbers):.{digits}f}" if numbers else ""


def notes(bench):
    lines = [""]
    for row in bench.rows:
        for side, samples in bench.results[row.name].items():
            for field, text in (("uploaded_at_close", "bytes were in the store when close returned"),
                                ("downloaded_bytes", "bytes were fetched"), ("p50_ms", "ms a request (p50)")):
                if values(samples, field):
                    lines.append(f"- {row.name}, {side}: {spread(values(samples, field), 1 if field == 'p50_ms' else 0)} {text}"
                                 f" of {values(samples, 'bytes')[0] if values(samples, 'bytes') else '-'} bytes in all")
    return lines


def as_json(bench):
    rows = []
    for row in bench.rows:
        numbers = ratios(row, bench.results[row.name])
        rows.append({"name": row.name, "title": row.title, "in_cache_before": row.warm, "unit": row.unit, "link": row.link,
                     "options": row.options, "skipped": bench.skipped.get(row.name), "of": row.of, "base": row.base, "bar": row.bar or None,
                     "ratios": numbers, "median_ratio": statistics.median(numbers) if numbers else None,
                     "met": statistics.median(numbers) >= row.bar if numbers and row.bar else None,
                     "samples": bench.results[row.name]})
    machine = {"kernel": platform.release(), "cpus": os.cpu_count(),
               "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "server_cpus": os.environ.get("BENCH_SERVER_CPUS"),
               "client_cpus": sorted(os.sched_getaffinity(0))}
    return {"when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine, "runs": bench.runs,
            "sizes": vars(bench.sizes), "rows": rows}


def svg(bench):
    """Horizontal bars, a group per row, each group scaled to its slowest side."""
    height, width, label, y, out = 16, 520, 420, 30, []
    for row in bench.rows:
        shown = {s: statistics.median(values(v)) for s, v in bench.results[row.name].items() if values(v)}
        if not shown:
            continue
        out.append(f'<text x="10" y="{y + 12}" font-weight="bold">{html.escape(row.title)}</text>')
        for side in SIDE_ORDER:
            if side in shown:
                length = max(1, width * shown[side] / max(shown.values()))
                out.append(f'<rect x="{label}" y="{y}" width="{length:.1f}" height="{height - 3}" fill="{COLOURS[side]}"/>'
                           f'<text x="{label + length + 5:.1f}" y="{y + 12}">{side} {shown[side]:.3g} {row.unit}</text>')
                y += height
        y += 10
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{label + width + 130}" height="{y + 10}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/><text x="10" y="18">shorter is better; medians of '
            f'{bench.runs} runs</text>' + "".join(out) + "</svg>\n")


def write(bench, out):
    """Leaves bench.md, bench.json and bench.svg in the directory out; gives the Markdown."""
    text = markdown(bench)
    for name, content in (("bench.md", text), ("bench.json", json.dumps(as_json(bench), indent=1) + "\n"), ("bench.svg", svg(bench))):
        tmp = pathlib.Path(out) / (name + ".new")
        tmp.write_text(content)
        tmp.rename(pathlib.Path(out) / name)
    return text
