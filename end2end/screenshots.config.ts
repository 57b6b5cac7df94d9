import config from "./playwright.config";

// `make screenshots`: the pictures of the documents, taken from real pages.
export default { ...config, testDir: "screenshots", timeout: 180_000, projects: undefined, reporter: [["list"]] };
