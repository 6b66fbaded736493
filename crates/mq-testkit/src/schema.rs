//! The part of JSON Schema that the project's own schemas use.

use serde_json::Value;

/// Returns the places where a value does not fit the schema at a JSON pointer of `root`, a line each. Panics at a word
/// of the schema that it does not know.
#[must_use]
pub fn schema_problems(root: &Value, pointer: &str, value: &Value) -> Vec<String> {
    let mut checker = Checker {
        root: root.clone(),
        problems: Vec::new(),
    };
    let schema = root.pointer(pointer).expect("the schema is there").clone();
    checker.at(&schema, value, "$");
    checker.problems
}

struct Checker {
    root: Value,
    problems: Vec<String>,
}

impl Checker {
    fn at(&mut self, schema: &Value, value: &Value, place: &str) {
        for (key, rule) in schema.as_object().unwrap() {
            let holds = match key.as_str() {
                "$ref" => {
                    let pointer = rule.as_str().unwrap().trim_start_matches('#');
                    let target = self.root.pointer(pointer).unwrap().clone();
                    self.at(&target, value, place);
                    true
                }
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|one| is_of(value, one)),
                    one => is_of(value, one),
                },
                "minimum" => value.is_null() || value.as_f64() >= rule.as_f64(),
                "const" => value == rule,
                "enum" => rule.as_array().unwrap().contains(value),
                "anyOf" => rule.as_array().unwrap().iter().any(|choice| {
                    let mut trial = Self {
                        root: self.root.clone(),
                        problems: Vec::new(),
                    };
                    trial.at(choice, value, place);
                    trial.problems.is_empty()
                }),
                "required" => {
                    let mut names = rule.as_array().unwrap().iter();
                    names.all(|name| value.get(name.as_str().unwrap()).is_some())
                }
                "properties" => {
                    for (name, schema) in rule.as_object().unwrap() {
                        if let Some(member) = value.get(name) {
                            self.at(schema, member, &format!("{place}.{name}"));
                        }
                    }
                    true
                }
                "additionalProperties" => self.additional(schema, rule, value, place),
                "items" => {
                    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.at(rule, item, &format!("{place}[{at}]"));
                    }
                    true
                }
                "$schema" | "$defs" | "title" | "description" | "format" => true,
                other => panic!("this checker does not know {other:?}"),
            };
            if !holds {
                let found: String = value.to_string().chars().take(200).collect();
                let problem = format!("{place}: {key} {rule} does not hold for {found}");
                self.problems.push(problem);
            }
        }
    }

    fn additional(&mut self, schema: &Value, rule: &Value, value: &Value, place: &str) -> bool {
        let members = value.as_object().into_iter().flatten();
        let mut others = members
            .filter(|(name, _)| schema["properties"].get(name).is_none())
            .peekable();
        if *rule == Value::Bool(false) {
            return others.peek().is_none();
        }
        for (name, member) in others {
            self.at(rule, member, &format!("{place}.{name}"));
        }
        true
    }
}

fn is_of(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other:?}"),
    }
}
