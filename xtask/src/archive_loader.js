// The modules that are instantiated or under way. A module must not be instantiated twice: it would reset its data.
const instances = new Map();
function instantiate(archive, name) {
    if (!instances.has(name)) {
        const [code] = WebAssembly.Module.customSections(archive, name);
        const instance = WebAssembly.instantiate(code, getSharedImports());
        instance.catch(() => instances.delete(name));
        instances.set(name, instance);
    }
    return instances.get(name);
}
// Returns the function that loads the modules of a page, once. A failure is not kept, so that the next call tries again.
function archive(file, names) {
    let loading;
    const load = async () => {
        const found = await WebAssembly.compileStreaming(fetch(new URL(file, import.meta.url)));
        await Promise.all(names.map((name) => instantiate(found, name)));
    };
    return () => loading ??= load().catch((error) => {
        loading = undefined;
        throw error;
    });
}
