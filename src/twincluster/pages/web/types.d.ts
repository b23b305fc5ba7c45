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

/** The tree of clusters: fine clusters ("leaves"), joined step by step. */
export interface TreeData {
  number: number; // of the newest edit it knows
  joins: [number, number][];
  stability: number[]; // of each node
  leaves: { size: number; rows: number[] }[]; // rows: the most typical
  clusters: { id: number; leaves: number[] }[]; // those in the tree
  kept: number[]; // clusters outside it
  natural: { clusters: number; agreement: number; best: boolean }[];
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
  example?: boolean; // a person has placed or confirmed it
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
  learned?(): unknown; // there is a new lesson
  undo?(): unknown; // takes back what was done last on this page
  results?: HTMLElement | null; // gets the focus after a search
  cluster?: number;
}

/** Answer of /api/lesson: what the teacher has learned from the edits up to `number`. */
export interface Lesson {
  stage: "preparing" | "ready" | "absent";
  absent: string; // why there is none
  number: number | null; // of the newest edit it is about
  moves?: number; // images that would move
  groups?: number;
  settled?: boolean; // everything is about this lesson
  asked?: number | null; // the newest edit that questions and trust are about
  examples?: number;
  enough?: boolean; // more answers would change little
  trust?: Trust | null;
}

/** The estimate of the share of images in the right cluster. */
export interface Trust {
  overall: Estimate;
  clusters: (Estimate & { id: number })[];
}

export interface Estimate {
  share: number;
  low: number; // of the 95 % interval
  high: number;
  count: number; // random questions that were answered
}

/** Images that would move from one cluster to another. */
export interface Group {
  source: number;
  to: number;
  size: number;
  certainty: number;
  rows: number[]; // the first
}

export interface Question {
  row: number;
  clusters: { id: number; probability: number }[];
  sample: boolean; // about a random image
  from: number; // place of the first cluster on the screen: "none of these" shows the next five
  picture?: HTMLImageElement | null;
  path?: string;
}
