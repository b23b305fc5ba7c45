// What the server and the report's data hold, for the type checker. Nothing here reaches a page.
import type { Explorer } from "./explorer/explorer.js";
import type { ReportPage } from "./report/page.js";

declare global {
  interface Window {
    explorer: Explorer;
    reportParts: ReportPage;
  }
}

/** What may stand inside an element. */
export type Child = Node | string | null | undefined;
export type Children = Child | Children[];

/** Attributes by name; `text` sets the text, and a name that starts with "on" adds a listener. */
export type Properties = Record<string, string | number | boolean | null | undefined | ((event: any) => unknown)>;

export interface Cluster {
  id: number;
  name: string;
  named: boolean; // by a person
  size: number;
  share: number; // of all readable images
  confidence: number | null; // null for an empty cluster
  typical: number[];
  doubtful: number[];
}

/** Images that can be drawn on a canvas. */
export interface Drawable {
  draw(context: CanvasRenderingContext2D, image: number, x: number, y: number, side: number, again: () => void): boolean;
}

/** Where the images stand on a map. */
export interface Points {
  image: number[];
  cluster: number[];
  x: number[];
  y: number[];
  method: string;
  meaning: string;
  note: string;
}

export interface ReportCluster extends Cluster {
  short: string;
  purity?: number;
  classes?: [code: number, count: number][];
  labelled?: number; // images with a label
}

/** What report/gather.py collects. A panel declares the type of its own part beside its code. */
export interface ReportData {
  [panel: string]: any;
  head: {
    sentences: string[];
    facts: { value: string; label: string }[];
    warning: string | null;
    next: { text: string; command?: string }[];
  };
  run: {
    source: string; kind: "images" | "rows"; inputs: number; readable: number; unseen: number; corrections: number;
    method: string; backbone: string; epochs: number; seed: number; version: string;
    made: Record<string, string>; command: string | null;
  };
  confidence: { mean: number | null; sure: number; bins: number[] };
  clusters: ReportCluster[];
  images: { path: string[]; cluster: number[]; confidence: number[]; label: number[]; large: number[]; small: number[] };
  labels: { [part: string]: any; names: (string | number)[] };
  map: Points & { absent?: string };
  thumbnails: ThumbnailLayout;
}

export type TileSize = "large" | "small";

export interface ThumbnailLayout {
  absent?: string; // why there are no pictures
  pixelated: boolean;
  large?: { count: number; side: number; columns: number; perSheet: number };
  small?: { count: number; side: number; columns: number; perSheet: number };
}

/** Answer of /api/state. */
export interface ExplorerState {
  number: number; // of the newest edit
  run: { source: string; kind: "images" | "rows"; inputs: number };
  clusters: Cluster[];
  junk: number;
  unreadable: number;
  undo: string | null;
  redo: string | null;
  pictures: { absent: string; version: string; pixelated: boolean };
  features: { ready: boolean; absent: string };
}

/** A row as /api/details, /api/neighbours and /api/drop describe it. */
export interface Row {
  row: number;
  path: string;
  cluster: number;
  status: string;
  confidence: number | null;
  cosine?: number;
}

/** What fills the page of the explorer below its links. */
export interface View {
  body: HTMLElement;
  refresh(): unknown;
  key(event: KeyboardEvent): boolean; // true for a key that it has used
  enter?(cluster?: number): void;
  leave?(): void;
  drawBar?(): void;
  results?: HTMLElement | null; // gets the focus after a search
  cluster?: number;
}
