// The tree in the report: any cut can be looked at; a command uses it.
import { copyButton, make, note } from "../parts/dom.js";
import { TreePanel } from "../parts/tree.js";

/** @import { Child, TreeData } from "../types.js" */
/** @import { ReportPage } from "./page.js" */

/**
 * @param {ReportPage} page
 * @returns {Child[] | null}
 */
export function treeBody(page) {
  /** @type {TreeData & {absent?: string, cut: string, serve: string}} */
  const tree = page.data.tree;
  if (!tree || tree.absent) return null;
  const one = page.data.run.kind.slice(0, -1);
  const panel = new TreePanel(tree, {
    one,
    atOnce: 9,
    nameOf: (id) => page.title(page.cluster(id)),
    thumbs: (rows) => page.viewer.thumbs(rows),
    deeds: (now) => {
      if (now.isNow) return [];
      const command = now.level === null ? tree.serve : `${tree.cut} --clusters ${now.level}`;
      return [make("span", { text: now.level === null ? "To use single branches, open and close them in the explorer:" : "To use this cut:" }),
        make("div", { class: "command" }, make("code", { text: command }), copyButton("Copy", () => command))];
    },
  });
  return [note("Fewer or more clusters, without training again. Looking at them here changes nothing."), panel.body];
}
