//! The help texts, and the place of the commands in a program.

use clap::{CommandFactory, Parser};

use crate::shell::{Program, Shell};

/// Returns the help of a command and of all commands below it.
fn helps(command: &mut clap::Command, texts: &mut Vec<(String, String)>) {
    texts.push((command.get_name().to_owned(), command.render_long_help().to_string()));
    for below in command.get_subcommands_mut() {
        helps(below, texts);
    }
}

#[test]
fn every_command_and_argument_is_described() {
    Program::command().debug_assert();
    let mut texts = Vec::new();
    let mut program = Program::command();
    program.build();
    helps(&mut program, &mut texts);
    assert!(texts.len() > 40, "{}", texts.len());
    // The documentation of shared types must not replace that of a command.
    for internal in
        ["The consent", "The length of the list", "The conditions of", "A command on", "The options", "A group of"]
    {
        for (name, text) in &texts {
            assert!(!text.contains(internal), "{name}: {text}");
        }
    }
    assert!(texts[0].1.starts_with("The program."), "{}", texts[0].1);
    if let Ok(path) = std::env::var("HELP_TEXTS") {
        let all: Vec<_> = texts.into_iter().map(|(_, text)| text).collect();
        std::fs::write(path, all.join("\n----\n")).expect("written");
    }
}

#[test]
fn options_of_remote_commands_belong_to_them_only() {
    let parses = |arguments: &[&str]| Program::try_parse_from([&["milvaion"], arguments].concat()).is_ok();
    assert!(parses(&["jobs", "list", "-o", "json", "--url", "http://a.example"]));
    assert!(parses(&["jobs", "-o", "yaml", "list"]));
    assert!(parses(&["run"]) && !parses(&["run", "-o", "json"]));
    assert!(!parses(&["jobs", "list", "--limit", "0"]) && !parses(&["jobs", "list", "--limit", "5", "--all"]));
    assert!(!parses(&["jobs", "get", "Send mail"]) && !parses(&["whoami", "--token", "x"]));
}

#[tokio::test]
async fn completions_cover_the_whole_program() {
    let outcome = Shell::new().run(&["completion", "bash"]).await;
    assert!(outcome.output.contains("dead-letters") && outcome.output.contains("milvaion"), "{}", outcome.output);
}
