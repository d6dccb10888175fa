// A curve, and the same numbers in a table beside it.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Curve {
  title: string;
  values: number[];
}

interface Props {
  title: string;
  /// Days or months, as `2026-01-31` or `2026-01`.
  at: string[];
  curves: Curve[];
  format: (value: number) => string;
}

const COLOURS = ["--curve-1", "--curve-2", "--curve-3"];

export function Chart({ title, at, curves, format }: Props): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // A canvas takes colours as they are, not as a theme names them.
    const colour = (name: string) => {
      place.current!.style.color = `var(${name})`;
      return getComputedStyle(place.current!).color;
    };
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const times = at.map((day) => Date.parse(day.length === 7 ? day + "-01" : day) / 1000);
    const plot = new uPlot(
      {
        width: place.current!.clientWidth,
        height: 180,
        legend: { show: false },
        cursor: { drag: { x: false, y: false } },
        scales: { x: { time: true }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(format) }],
        series: [{}, ...curves.map((curve, i) => ({ label: curve.title, stroke: colour(COLOURS[i % 3]!), width: 2, fill: curves.length === 1 ? colour("--curve-fill") : undefined }))],
      },
      [times, ...curves.map((curve) => curve.values)],
      place.current!,
    );
    const resize = new ResizeObserver(() => place.current && plot.setSize({ width: place.current.clientWidth, height: 180 }));
    resize.observe(place.current!);
    return () => {
      resize.disconnect();
      plot.destroy();
    };
  }, [at.join(), JSON.stringify(curves), document.documentElement.dataset.theme]);
  return (
    <figure class="chart">
      <figcaption>{title}<span class="legend">{curves.length > 1 && curves.map((curve, i) => <span key={i} class={`curve-${i + 1}`}>{curve.title}</span>)}</span></figcaption>
      <div ref={place} aria-hidden="true" />
      <details open>
        <summary>Numbers</summary>
        <div class="numbers" tabIndex={0} role="region" aria-label={`${title}, numbers`}>
          <table>
            <thead><tr><th>When</th>{curves.map((curve) => <th key={curve.title}>{curve.title}</th>)}</tr></thead>
            <tbody>{at.map((day, i) => <tr key={day}><td>{day}</td>{curves.map((curve) => <td key={curve.title}>{format(curve.values[i] ?? 0)}</td>)}</tr>).reverse()}</tbody>
          </table>
        </div>
      </details>
    </figure>
  );
}
