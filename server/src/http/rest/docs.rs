//! The page `/api/docs`: the OpenAPI document for people.
//!
//! It is one page of HTML without scripts, made on first use. A viewer from a package would be a megabyte of script that
//! the content security policy has to allow.

use std::fmt::Write;

use serde_json::Value;

use super::problem::PROBLEM_KINDS;

/// The style of the page.
pub(super) const STYLE: &str = include_str!("docs.css");
/// The number of levels of a schema that the page shows.
const MAX_DEPTH: usize = 4;

/// Builds the page.
pub(super) fn page(document: &Value) -> String {
    let mut html = String::from(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>API of Milvaion</title>\
         <link rel=\"stylesheet\" href=\"/api/docs.css\"></head><body><header><a href=\"/\">Milvaion</a> \
         <a href=\"/tokens\">API tokens</a> <a href=\"/api/openapi.json\">OpenAPI document</a></header><main>\
         <h1>API</h1><p>Everything that the dashboard can do. Send a token in the header <code>Authorization: Bearer \
         milvaion_…</code>; tokens are created on the page <a href=\"/tokens\">API tokens</a>.</p>\
         <h2 id=\"rules\">Rules</h2><ul>\
         <li>Bodies are JSON. An unknown field or parameter is an error.</li>\
         <li>A list has <code>items</code> and <code>next</code>: the cursor of the next page, or null.</li>\
         <li>Jobs and calendars have a version, as <code>ETag</code>. A PUT or DELETE with <code>If-Match</code> changes \
         nothing if the version is another one.</li>\
         <li>A POST may have an <code>Idempotency-Key</code>. A repetition within a day gets the first answer.</li>\
         <li>The headers <code>RateLimit</code> and <code>RateLimit-Policy</code> say how many requests are left.</li>\
         <li>Errors are problem documents (RFC 9457), with the invalid fields in <code>errors</code>.</li></ul>",
    );
    for group in document["tags"].as_array().into_iter().flatten() {
        let name = group["name"].as_str().unwrap_or_default();
        let _ = write!(html, "<h2>{}</h2>", escape(name));
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                if operation["tags"][0] == name {
                    write_operation(&mut html, document, path, method, operation);
                }
            }
        }
    }
    html.push_str("<h2>Problems</h2><dl>");
    for (name, status, title) in PROBLEM_KINDS {
        let _ = write!(html, "<dt id=\"problem-{name}\"><code>{}</code> {name}</dt><dd>{title}.</dd>", status.as_u16());
    }
    html.push_str("</dl></main></body></html>");
    html
}

fn write_operation(html: &mut String, document: &Value, path: &str, method: &str, operation: &Value) {
    let text = |value: &Value| escape(value.as_str().unwrap_or_default());
    let _ = write!(
        html,
        "<section id=\"{}\"><h3><code class=\"{method}\">{}</code> <code>{}</code></h3><p>{}. {}</p>",
        text(&operation["operationId"]),
        method.to_uppercase(),
        escape(path),
        text(&operation["summary"]),
        text(&operation["description"])
    );
    let parameters: Vec<&Value> = operation["parameters"].as_array().into_iter().flatten().collect();
    if !parameters.is_empty() {
        html.push_str("<h4>Parameters</h4><dl>");
        for parameter in parameters {
            let _ = write!(
                html,
                "<dt><code>{}</code> <span>{}, {}</span></dt><dd>{}</dd>",
                text(&parameter["name"]),
                text(&parameter["in"]),
                escape(&kind(document, &parameter["schema"])),
                text(&parameter["description"])
            );
        }
        html.push_str("</dl>");
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if body.is_object() {
        html.push_str("<h4>Body</h4>");
        write_schema(html, document, body, 0);
    }
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let schema = &response["content"]["application/json"]["schema"];
        if status.starts_with('2') {
            let _ = write!(html, "<h4>Answer {status}</h4>");
            if schema.is_object() {
                write_schema(html, document, schema, 0);
            } else {
                let _ = write!(html, "<p>{}</p>", text(&response["description"]));
            }
        }
    }
    html.push_str("</section>");
}

/// Returns the schema that a reference names, or the schema itself.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => document.pointer(pointer).unwrap_or(schema),
        None => schema,
    }
}

fn write_schema(html: &mut String, document: &Value, schema: &Value, depth: usize) {
    let schema = resolve(document, schema);
    if depth > MAX_DEPTH {
        return;
    }
    let choices: Vec<&Value> = ["oneOf", "anyOf"].iter().filter_map(|key| schema[*key].as_array()).flatten().collect();
    for choice in &choices {
        write_schema(html, document, choice, depth + 1);
    }
    let items = resolve(document, &schema["items"]);
    if items.is_object() {
        write_schema(html, document, items, depth + 1);
    }
    let Some(properties) = schema["properties"].as_object() else { return };
    html.push_str("<dl>");
    for (name, property) in properties {
        let target = resolve(document, property);
        let description = property["description"].as_str().or(target["description"].as_str()).unwrap_or_default();
        let _ = write!(
            html,
            "<dt><code>{}</code> <span>{}</span></dt><dd>{}",
            escape(name),
            escape(&kind(document, property)),
            escape(description)
        );
        write_schema(html, document, property, depth + 1);
        html.push_str("</dd>");
    }
    html.push_str("</dl>");
}

/// Returns the type of a schema in words.
fn kind(document: &Value, schema: &Value) -> String {
    let schema = resolve(document, schema);
    if let Some(constant) = schema.get("const") {
        return constant.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
    }
    let choices = ["oneOf", "anyOf"].iter().filter_map(|key| schema[*key].as_array()).flatten();
    let choices: Vec<String> = choices.map(|choice| kind(document, choice)).collect();
    if !choices.is_empty() {
        return choices.join(" | ");
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", self::kind(document, &schema["items"])),
        Value::String(kind) => {
            schema["format"].as_str().map_or_else(|| kind.clone(), |format| format!("{kind} ({format})"))
        }
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | "),
        _ => "any value".into(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
