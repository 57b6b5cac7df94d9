// Makes WebAssembly modules smaller, in place: `node wasm-opt.mjs <folder of the npm packages> <module>…`
//
// It does what `wasm-opt -Oz` does, for many modules in one process. The browser side has more than two hundred modules,
// most of them smaller than one kilobyte, and starting wasm-opt takes longer than such a module.

import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { argv, exit } from "node:process";
import { pathToFileURL } from "node:url";

const [packages, ...modules] = argv.slice(2);
const { default: binaryen } = await import(pathToFileURL(join(packages, "binaryen/index.js")));

// The extensions of the first WebAssembly version that rustc uses today and every current browser supports.
const { Features } = binaryen;
const features =
  Features.BulkMemory |
  Features.BulkMemoryOpt |
  Features.CallIndirectOverlong |
  Features.Multivalue |
  Features.MutableGlobals |
  Features.NontrappingFPToInt |
  Features.ReferenceTypes |
  Features.SignExt;

// The levels of -Oz.
binaryen.setOptimizeLevel(2);
binaryen.setShrinkLevel(2);
binaryen.setDebugInfo(false);

for (const path of modules) {
  try {
    const module = binaryen.readBinary(readFileSync(path), features);
    module.runPasses(["strip-debug"]);
    module.optimize();
    const small = `${path}.small`;
    writeFileSync(small, module.emitBinary());
    renameSync(small, path);
    module.dispose();
  } catch (error) {
    console.error(`${path}: ${error}`);
    exit(1);
  }
}
