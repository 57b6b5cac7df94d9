//! Tests of the input form: the order and kinds of its fields, both conversions, and the errors.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

fn schema() -> Value {
    serde_json::from_str(
        r##"{
            "$defs": {"Method": {"enum": ["GET", "POST"]}},
            "properties": {
                "timeoutSeconds": {"type": ["integer", "null"], "description": "Seconds."},
                "url": {"type": "string", "examples": ["http://localhost"]},
                "method": {"$ref": "#/$defs/Method", "default": "GET"},
                "anything": {"type": "object"},
                "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 5},
                "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                "auth": {"title": "Authentication", "anyOf": [{"oneOf": [
                    {"type": "object", "properties": {"type": {"const": "basic"}, "user": {"type": "string"},
                     "password": {"type": "string"}}, "required": ["type", "user"]},
                    {"type": "object", "properties": {"type": {"const": "bearer"}, "token": {"type": "string"}},
                     "required": ["type", "token"]}
                ]}, {"type": "null"}]},
                "body": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "proxy": {"type": "object", "required": ["host"], "properties": {
                    "host": {"type": "string"}, "port": {"type": "integer"}, "tls": {"type": "boolean", "default": true}}},
                "checks": {"type": "array", "items": {"type": "object", "properties": {
                    "name": {"type": "string"}, "strict": {"type": "boolean", "default": false}}, "required": ["name"]}},
                "verify": {"type": "boolean", "default": true},
                "trace": {"type": ["boolean", "null"]}
            },
            "required": ["url"]
        }"##,
    )
    .expect("JSON")
}

fn typed(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Returns the texts as a browser posts them from the fields that the server has drawn: a box without a check has no
/// key, a select only its own options, and the line breaks are those of HTML.
fn posted(schema: &Value, texts: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let drawn = |(key, text): (&String, &String)| {
        let is_area = text.contains('\n') && !key.ends_with("~k") && key != "timeoutSeconds";
        let text = if is_area {
            let shown = text.replace("\r\n", "\n").replace('\r', "\n");
            shown.strip_prefix('\n').unwrap_or(&shown).replace('\n', "\r\n")
        } else {
            text.replace(['\r', '\n'], "")
        };
        (key.clone(), text)
    };
    let mut posted: BTreeMap<String, String> = texts.iter().map(drawn).collect();
    for InputField { name, kind, .. } in form_fields(schema) {
        let options = match &kind {
            InputKind::Boolean => vec!["true".to_owned()],
            InputKind::OptionalBoolean => vec!["true".to_owned(), "false".to_owned()],
            InputKind::Choice(words) => words.clone(),
            InputKind::Text | InputKind::Multiline | InputKind::Integer | InputKind::Number | InputKind::Json => {
                posted.entry(name).or_default();
                continue;
            }
            _ => continue,
        };
        let chosen = posted.remove(&name).filter(|text| options.contains(text));
        match (kind, chosen) {
            (_, Some(text)) => {
                posted.insert(name, text);
            }
            (InputKind::Boolean, None) => {}
            (_, None) => {
                posted.insert(name, String::new());
            }
        }
    }
    posted
}

fn kind(name: &str) -> InputKind {
    form_fields(&schema()).into_iter().find(|field| field.name == name).expect("a field").kind
}

#[test]
fn fields_stand_in_the_order_of_the_schema() {
    let names: Vec<String> = form_fields(&schema()).into_iter().map(|field| field.name).collect();
    let expected = [
        "timeoutSeconds",
        "url",
        "method",
        "anything",
        "argv",
        "headers",
        "auth",
        "body",
        "proxy",
        "checks",
        "verify",
        "trace",
    ];
    assert_eq!(names, expected);
}

#[test]
fn kinds_follow_the_schema() {
    assert_eq!(kind("timeoutSeconds"), InputKind::Integer);
    assert_eq!(kind("anything"), InputKind::Json);
    assert!(matches!(kind("argv"), InputKind::List(rows) if rows.min == 1 && rows.max == 5));
    assert!(matches!(kind("headers"), InputKind::Map(rows) if rows.item.kind == InputKind::Text));
    assert!(matches!(kind("proxy"), InputKind::Object(object) if object.fields.len() == 3));
    assert_eq!((kind("trace"), kind("verify")), (InputKind::OptionalBoolean, InputKind::OptionalBoolean));
    let InputKind::Union(variants) = kind("auth") else { panic!("a union") };
    assert_eq!(variants.iter().map(|variant| variant.label.as_str()).collect::<Vec<_>>(), ["Basic", "Bearer"]);
    let InputKind::Union(variants) = kind("body") else { panic!("a union") };
    assert_eq!(variants.iter().map(|variant| variant.label.as_str()).collect::<Vec<_>>(), ["Text", "Whole number"]);
    let auth = form_fields(&schema()).into_iter().find(|field| field.name == "auth").expect("a field");
    assert_eq!(auth.label, "Authentication");
}

#[test]
fn depth_and_number_of_fields_are_bounded() {
    let mut deep = json!({"type": "string"});
    for _ in 0..6 {
        deep = json!({"type": "object", "properties": {"in": deep}});
    }
    let mut fields = form_fields(&deep);
    let mut depth = 0;
    while let Some(InputField { kind: InputKind::Object(object), .. }) = fields.first() {
        fields = object.fields.clone();
        depth += 1;
    }
    assert_eq!((depth, &fields[0].kind), (MAX_FORM_DEPTH - 1, &InputKind::Json));
    let many: serde_json::Map<String, Value> =
        (0..=MAX_FORM_FIELDS).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    assert!(form_fields(&json!({"properties": many})).is_empty());
    let nested = json!({"properties": {"a": {"type": "object", "properties": many}}});
    assert_eq!(form_fields(&nested)[0].kind, InputKind::Json);
}

#[test]
fn text_is_converted_to_the_schemas_types() {
    let data = build_input(
        &schema(),
        &typed(&[
            ("url", " http://x "),
            ("timeoutSeconds", "5"),
            ("anything", "{\"a\":\"b\"}"),
            ("argv/0", "ls"),
            ("argv/0~i", "1"),
            ("argv/1~i", "1"),
            ("argv/2", "-l"),
            ("headers/0~k", "X-One"),
            ("headers/0", "1"),
            ("auth~v", "1"),
            ("auth/token", "t"),
            ("auth/user", "left over from another variant"),
            ("body~v", "1"),
            ("body~s", "7"),
            ("proxy/host", "h"),
            ("checks/0~i", "1"),
            ("checks/0/name", "n"),
            ("checks/1/name", " "),
            ("verify", "on"),
            ("~x", "{\"extra\": null, \"url\": \"no\"}"),
        ]),
    );
    assert_eq!(
        data,
        Ok(json!({
            "url": "http://x", "timeoutSeconds": 5, "anything": {"a": "b"}, "argv": ["ls", "-l"],
            "headers": {"X-One": "1"}, "auth": {"type": "bearer", "token": "t"}, "body": 7, "proxy": {"host": "h"},
            "checks": [{"name": "n"}], "verify": true, "extra": null
        }))
    );
}

#[test]
fn all_invalid_texts_are_reported_per_field() {
    let typed = typed(&[
        ("timeoutSeconds", "soon"),
        ("anything", "{"),
        ("headers/0", "value without a name"),
        ("headers/1~k", "A"),
        ("headers/2~k", "A"),
        ("auth~v", "0"),
        ("proxy/port", "x"),
        ("checks/0~i", "1"),
        ("~x", "[]"),
    ]);
    let errors = build_input(&schema(), &typed).expect_err("invalid");
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    let expected = [
        "input.~x",
        "input.timeoutSeconds",
        "input.url",
        "input.anything",
        "input.headers/0~k",
        "input.headers/2~k",
        "input.auth/user",
        "input.proxy/host",
        "input.proxy/port",
        "input.checks/0/name",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn every_object_is_shown_as_fields_without_loss() {
    for data in [
        json!({}),
        json!({"url": "http://x", "argv": ["a", "b"], "headers": {"A": "1", "B": ""}, "verify": false}),
        json!({"auth": {"type": "bearer", "token": "t"}, "body": 7, "trace": false}),
        json!({"auth": {"type": "basic", "user": "u", "more": [1]}, "body": "text"}),
        json!({"auth": {"type": "unknown"}, "body": [1, 2], "argv": "no list", "headers": {"A": 1}}),
        json!({"auth": null, "url": "", "timeoutSeconds": "5", "argv": [], "unknown": {"deep": [null]}}),
        json!({"argv": ["", " padded "], "url": "two\nlines", "proxy": {}, "checks": [{}, {"name": "n", "strict": true}]}),
        json!({"timeoutSeconds": 18_446_744_073_709_551_615_u64, "checks": [{"name": "n", "other": 1}], "a/b~[c]": 1}),
        json!({"timeoutSeconds": "soon", "proxy": {"host": "h", "tls": false, "port": null}}),
        json!({"url": "lone\rreturn", "argv": ["a\rb"], "body": "\r", "auth": {"type": "basic", "user": "u\r"}}),
        json!({"url": "\nfirst", "argv": ["\nfirst", "last\n"], "headers": {"A": "\nfirst"}, "body": "\r\n"}),
        json!({"headers": {"A\nB": "1"}, "proxy": {"host": "a\nb"}, "checks": [{"name": "\rn"}]}),
        json!({"headers": {"A\rB": "1"}, "timeoutSeconds": "5\n6", "method": "FETCH", "verify": "no"}),
    ] {
        let texts = to_field_texts(&schema(), &data);
        assert_eq!(build_lenient(&schema(), &texts), Ok(data.clone()), "{texts:?}");
        let posted = posted(&schema(), &texts);
        assert_eq!(build_lenient(&schema(), &posted), Ok(data), "{posted:?}");
    }
}

#[test]
fn optional_boolean_keeps_yes_no_and_left_out() {
    for default in [Value::Null, false.into(), true.into()] {
        let mut schema = json!({"properties": {"follow": {"type": "boolean"}, "in": {"type": "object", "properties": {
            "tls": {"type": "boolean"}, "host": {"type": "string"}}}}});
        if !default.is_null() {
            schema["properties"]["follow"]["default"] = default.clone();
            schema["properties"]["in"]["properties"]["tls"]["default"] = default.clone();
        }
        for data in [json!({}), json!({"follow": false}), json!({"follow": true, "in": {"host": "h", "tls": false}})] {
            let typed = posted(&schema, &to_field_texts(&schema, &data));
            assert_eq!(build_input(&schema, &typed), Ok(data), "with the default {default}");
        }
    }
}

#[test]
fn required_box_posts_nothing_for_no() {
    let schema = json!({"properties": {"agreed": {"type": "boolean"}}, "required": ["agreed"]});
    for agreed in [false, true] {
        let data = json!({"agreed": agreed});
        let typed = posted(&schema, &to_field_texts(&schema, &data));
        assert_eq!(typed.contains_key("agreed"), agreed);
        assert_eq!(build_input(&schema, &typed), Ok(data));
    }
}

#[test]
fn numbers_that_would_be_rounded_are_refused() {
    let schema = json!({"properties": {
        "id": {"type": "integer"}, "rate": {"type": "number"}, "any": {},
        "ids": {"type": "array", "items": {"type": "integer"}}
    }});
    let long = "123456789012345678901";
    let others = format!("{{\"deep\": [{long}]}}");
    let inexact = typed(&[
        ("id", long),
        ("rate", "0.12345678901234567890"),
        ("any", long),
        ("ids/0", long),
        ("~x", others.as_str()),
    ]);
    let errors = build_input(&schema, &inexact).expect_err("the numbers have too many digits");
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["input.~x", "input.id", "input.rate", "input.any", "input.ids/0"]);
    for error in &errors {
        assert!(error.message.ends_with("use fewer digits, or write it as text"), "{}", error.message);
    }
    assert!(
        errors[0].message.starts_with("/deep/0: 123456789012345678901 would be rounded to"),
        "{}",
        errors[0].message
    );
    let exact = typed(&[("id", "-9223372036854775808"), ("rate", "1.50"), ("any", "\"123456789012345678901\"")]);
    assert_eq!(build_input(&schema, &exact), Ok(json!({"id": i64::MIN, "rate": 1.5, "any": long})));
    // The JSON editor shows such a number as text, so that no digit is lost.
    let texts = typed(&[("id", long), ("rate", "0.12345678901234567890")]);
    assert_eq!(build_lenient(&schema, &texts), Ok(json!({"id": long, "rate": "0.12345678901234567890"})));
}

#[test]
fn missing_required_groups_are_not_added() {
    let schema = json!({
        "properties": {
            "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "tags": {"type": "array", "items": {"type": "string"}},
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "proxy": {"type": "object", "required": ["host"], "properties": {"host": {"type": "string"}}},
            "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "body": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}},
                {"type": "object", "properties": {"file": {"type": "string"}}}]},
        },
        "required": ["argv", "tags", "headers", "proxy", "body"],
    });
    for data in [
        json!({}),
        json!({"argv": [], "tags": [], "headers": {}, "proxy": {}, "body": []}),
        json!({"argv": "ls", "tags": null, "headers": [1], "proxy": "none", "body": {}}),
        json!({"tags": ["a"], "matrix": [[], [1], []], "body": {"file": "f"}}),
    ] {
        let texts = to_field_texts(&schema, &data);
        assert_eq!(build_lenient(&schema, &texts), Ok(data.clone()), "{texts:?}");
        let posted = posted(&schema, &texts);
        assert_eq!(build_lenient(&schema, &posted), Ok(data), "{posted:?}");
    }
    let texts = to_field_texts(&schema, &json!({"matrix": [[], [1]], "body": []}));
    assert!(texts.keys().all(|key| !key.ends_with("~x")), "an empty row or variant is shown as fields: {texts:?}");
    // The check names what must not be empty. A group that may be empty counts as filled in.
    let built = build_partial(&schema, &BTreeMap::new());
    let fields: Vec<&str> = built.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["input.argv", "input.proxy/host", "input.body"]);
    assert_eq!(built.data, json!({"tags": [], "headers": {}, "proxy": {}}));
    let others = typed(&[("argv/0", "ls"), ("body~v", "2"), ("~x", r#"{"proxy": "none", "tags": null}"#)]);
    let built = build_partial(&schema, &others);
    assert!(built.errors.is_empty(), "{:?}", built.errors);
    assert_eq!(built.data, json!({"argv": ["ls"], "tags": null, "headers": {}, "proxy": "none", "body": {}}));
}

#[test]
fn rows_are_added_removed_and_moved() {
    let mut texts = to_field_texts(&schema(), &json!({"argv": ["a", "b", "c"], "argv2": 1}));
    let argv = |texts: &BTreeMap<String, String>| {
        build_lenient(&schema(), texts).expect("no errors").get("argv").cloned().unwrap_or_default()
    };
    path::swap_rows(&mut texts, "argv", 0, 2);
    assert_eq!(argv(&texts), json!(["c", "b", "a"]));
    path::remove_row(&mut texts, "argv", 1);
    assert_eq!(argv(&texts), json!(["c", "a"]));
    assert_eq!(path::add_row(&mut texts, "argv"), 2);
    assert_eq!(path::rows(&texts, "argv"), [0, 1, 2]);
    assert_eq!(argv(&texts), json!(["c", "a"]), "an empty row is no item");
    texts.insert("argv/2".into(), "d".into());
    assert_eq!(argv(&texts), json!(["c", "a", "d"]));
}

#[test]
fn early_variant_or_row_is_another_structure() {
    let drawn = to_field_texts(&schema(), &json!({"argv": ["a"], "url": "u", "checks": [{"name": "n"}]}));
    let with = |key: &str, text: &str| {
        let mut typed = drawn.clone();
        typed.extend([("auth~v".to_owned(), String::new()), ("argv/1".to_owned(), " ".to_owned())]);
        typed.insert(key.to_owned(), text.to_owned());
        path::is_restructured(&drawn, &typed)
    };
    for (key, text) in [("auth~v", "1"), ("argv/1", "b"), ("headers/0~k", "X"), ("checks/1/name", "m")] {
        assert!(with(key, text), "{key}");
    }
    for (key, text) in [("url", "v"), ("argv/0", "b"), ("checks/0/name", "m"), ("verify", "false"), ("headers/0", "")] {
        assert!(!with(key, text), "{key}");
    }
}

#[test]
fn pointers_of_values_lead_to_their_fields() {
    let typed = typed(&[
        ("argv/1", "a"),
        ("argv/4", "b"),
        ("headers/3~k", "X/Y"),
        ("headers/3", "1"),
        ("auth~v", "1"),
        ("body~v", "1"),
        ("body~s", "7"),
    ]);
    let built = build_partial(&schema(), &typed);
    assert_eq!(built.field_at("/argv/1"), "input.argv/4");
    assert_eq!(built.field_at("/headers/X~1Y"), "input.headers/3");
    assert_eq!(built.field_at("/auth/token"), "input.auth/token");
    assert_eq!(built.field_at("/body"), "input.body~s");
    assert_eq!(built.field_at("/unknown/deep"), "input");
    assert_eq!((built.variant_at("/auth"), built.variant_at("/argv")), (Some(1), None));
}
