#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Options, commands and settings as they are typed: help, suggestions, one meaning each, exact messages."""
import json
import stat

import support
from support import Case, MODELS, SOURCE

COMMANDS = ("compile", "check", "explain", "run", "bench", "ops", "algos", "verify", "tune", "topo", "doctor", "ps", "analyze",
            "report", "info", "simulate")


class Help(Case):
    def test_every_form_prints_one_text(self):
        for command in COMMANDS:
            text = self.weft(command, "--help").stdout
            self.assertTrue(text.startswith(f"usage: weft {command} "), text[:80])
            self.assertEqual(text, self.weft(command, "-h").stdout)
            self.assertEqual(text, self.weft("help", command).stdout)
            self.assertLessEqual(max(map(len, text.splitlines())), 100, command)
        self.assertEqual(self.weft("--help").stdout, self.weft("help").stdout)
        self.assertIn("exit status:", self.weft("help").stdout)

    def test_json_holds_every_option(self):
        """The command reference and the manual pages are made of it."""
        found = json.loads(self.weft("help", "--json").stdout)
        self.assertEqual([command["name"] for command in found["commands"]], list(COMMANDS))
        self.assertEqual(set(found["exit_status"]), {"0", "1", "2", "130"})
        self.assertIn("WEFT_PROGRESS", {setting["name"] for setting in found["settings"]})
        for command in found["commands"]:
            text = self.weft("help", command["name"]).stdout
            names = [option["long"] for option in command["options"]]
            self.assertEqual(len(names), len(set(names)), command["name"])
            for option in command["options"]:
                self.assertEqual(set(option), {"short", "long", "arg", "help"})
                self.assertIn(f"--{option['long']}", text)

    def test_one_meaning_per_option(self):
        """A name has the same letter in every command, and a kind of value that differs only where a list is taken."""
        seen = {}
        for command in json.loads(self.weft("help", "--json").stdout)["commands"]:
            for option in command["options"]:
                short, arg = seen.setdefault(option["long"], (option["short"], option["arg"]))
                self.assertEqual(option["short"], short, option["long"])
                self.assertEqual(option["arg"] is None, arg is None, option["long"])
            names = {option["long"]: option for option in command["options"]}
            if "world" in names:
                self.assertEqual(names["world"]["short"], "n", command["name"])
            self.assertFalse({"ranks", "shards", "cards"} & set(names))
            if "hosts" in names:
                self.assertEqual(command["name"], "run")


class CompileOptions(Case):
    """The table of options, walked through what the command and the documents make of it."""

    def setUp(self):
        super().setUp()
        self.rows = json.loads(self.weft("help", "--json").stdout)["compile_options"]
        self.named = [row for row in self.rows if row["name"] and not row["positional"]]

    def flag(self, row):
        return "--" + row["name"].replace("_", "-")

    def test_every_row_has_an_option_and_a_reference(self):
        texts = {name: self.weft("help", name).stdout for name in ("compile", "check", "run")}
        page, manual = ((SOURCE / "docs" / name).read_text() for name in ("options.md", "commands.md"))
        self.assertGreater(len(self.named), 25)
        for row in self.named:
            option = self.flag(row) + (f" {row['arg']}" if row["arg"] else "")
            self.assertIn(f" {option}", texts["compile"])
            self.assertIn(option, manual)
            self.assertIn(f"- `{option}`", page)
        for row in self.rows:
            self.assertIn(f"`{row['field']}`", page)
        for only, common in (("emit-onnx", "world"), ("print-after", "batch"), ("verify-each", "kernels")):
            self.assertIn(f" --{common} ", texts["check"])
            self.assertIn(f" --{common} ", texts["run"])
            self.assertNotIn(f"--{only}", texts["check"] + texts["run"])

    def test_a_value_out_of_range_names_field_and_option(self):
        for row in self.named:
            if row["type"] not in ("u32", "i64", "f64", "bytes") and not row["choices"]:
                continue
            done = self.weft("compile", MODELS / "mlp.onnx", "-o", "p.weft", f"{self.flag(row)}=-1", code=2)
            self.assertRegex(done.stderr, rf"^weft compile: {row['field']}: must be .*: -1 \({self.flag(row)}\)\n$")

    def test_exclusions_name_field_and_option(self):
        by_field = {row["field"]: row for row in self.named}
        values = {"emit_path": "e.onnx", "split_batch": "4"}

        def given(row):
            value = values.get(row["field"], row["choices"][0] if row["choices"] else "1" if row["low"] or row["type"] == "f64" else "x")
            return [self.flag(row)] + ([value] if row["arg"] else [])
        compile_it = ["compile", MODELS / "mlp.onnx", "-o", "p.weft", "-n", "2"]
        for row in self.named:
            cases = [[*given(by_field[row["excludes"]]), "--batch", "4"]] if row["excludes"] in by_field else []
            cases += [["--infer", "--batch", "4"]] if row["training"] and row["field"] != "bucket" else []
            cases += [[]] if row["inference"] else []
            for others in cases:
                done = self.weft(*compile_it, *given(row), *others, code=2)
                self.assertRegex(done.stderr, rf"^weft compile: {row['field']}: .* \({self.flag(row)}\)\n$")


class Options(Case):
    def says(self, words, *args, **kwargs):
        done = self.weft(*args, code=2, **kwargs)
        self.assertEqual(done.stdout, "")
        self.assert_one_line(done.stderr)
        self.assertEqual(done.stderr, f"weft {words}\n")

    def test_three_messages(self):
        self.says("run: unknown option '--epoches' (did you mean '--epochs'?)", "run", "--epoches", "2")
        self.says("run: unknown option '--zzz'; `weft help run` lists the options", "run", "--zzz")
        self.says("run: unknown option '-z'; `weft help run` lists the options", "run", "-z")
        self.says("run: ambiguous option '--check' (matches --checkpoint, --checkpoint-every, --checkpoint-keep)", "run", "--check", "x")
        self.says("compile: option '--batch' requires a value", "compile", "--batch")
        self.says("compile: option '--batch' requires a value", "compile", "--batch", "--infer")
        self.says("compile: option '-o' requires a value", "compile", "-o")
        self.says("info: option '--json' takes no value", "info", "--json=1")

    def test_abbreviations_and_forms(self):
        plan = self.dir / "p.weft"
        for number in (["--world", "3"], ["--world=3"], ["--wor", "3"], ["-n", "3"], ["-n3"]):
            done = self.weft("compile", MODELS / "mlp.onnx", f"-o{plan}", "--batch=4", *number, "--json")
            self.assertEqual(json.loads(done.stdout)["world"], 3)

    def test_names_of_earlier_versions(self):
        self.says("bench: unknown option '--ranks' (renamed to '--world')", "bench", "all_reduce", "--ranks", "2")
        self.says("compile: unknown option '--shards' (renamed to '--global-micro-batches')", "compile", "--shards", "2")

    def test_unknown_commands(self):
        done = self.weft("complie", code=2)
        self.assertEqual(done.stderr, "weft: unknown command 'complie' (did you mean 'compile'?)\n")
        self.assertEqual(self.weft("help", "rnu", code=2).stderr, "weft: unknown command 'rnu' (did you mean 'run'?)\n")
        self.assertIn("`weft help` lists", self.weft("xyzzy", code=2).stderr)

    def test_a_program_goes_after_two_dashes(self):
        self.says("run: a program goes after --: weft run -n 2 -- python3 train.py --lr 1", "run", "-n", "2", "python3",
                  "train.py", "--lr", "1")

    def test_ranges(self):
        self.says("compile: world_size: must be a whole number between 1 and 65536: 0 (--world)", "compile", "m.onnx", "-o", "p", "--world", "0")
        self.says("compile: world_size: must be a whole number between 1 and 65536: two (--world)", "compile", "-n", "two")
        self.says("bench: --factor 1: must be between 2 and 1024", "bench", "all_reduce", "--factor", "1")
        self.says("run: --seed -1: must be at least 0", "run", "--seed=-1")
        self.says("bench: --stream x: must be none, inline or thread", "bench", "all_reduce", "--stream", "x")

    def test_operators_have_one_name_and_aliases(self):
        rows = [self.weft("algos", "--op", name, "-n", 4).stdout
                for name in ("all_reduce", "AllReduce", "allreduce", "all-reduce")]
        self.assertTrue(rows[0].startswith("all_reduce, 4 ranks\n"))
        self.assertEqual(len(set(rows)), 1)
        for args in (("bench", "all_redcue"), ("algos", "--op", "all_redcue"), ("verify", "--op", "all_redcue"),
                     ("tune", "-o", "c.json", "--op", "all_redcue")):
            self.assertIn("all_redcue: unknown operator (did you mean 'all_reduce'?)", self.weft(*args, code=2).stderr)
        done = self.weft("verify", "--op", "sum", code=2)
        self.assertIn("must be all_reduce, broadcast, reduce_scatter, all_gather,", done.stderr)
        self.weft("verify", "--op", "AllGather", "-n", 3)
        self.assertIn("must be all_reduce", self.weft("bench", "barrier", code=2).stderr)

    def test_a_field_names_its_option(self):
        """Messages of the library name the parameter's field; the command adds the option that sets it."""
        compile_it = ("compile", MODELS / "mlp.onnx", "-o", "p.weft", "--batch", "4")
        done = self.weft(*compile_it, "-n", 2, "--global-micro-batches", 7, code=2)
        self.assertRegex(done.stderr, r"^weft compile: global_micro_batches: .*world_size.* \(--global-micro-batches\)\n$")
        for args, flag in ((("-n", 2, "--loss", "los"), "--loss"), (("-n", 2, "--shape", "x=1"), "--shape")):
            done = self.weft(*compile_it, *args, code=2)
            self.assertTrue(done.stderr.endswith(f" ({flag})\n"), done.stderr)

    def test_wrong_names_list_what_exists(self):
        compile_it = ("compile", MODELS / "mlp.onnx", "-o", "p.weft", "--batch", "4", "-n", 2)
        self.assertIn("'loss'", self.weft(*compile_it, "--loss", "los", code=2).stderr)
        done = self.weft(*compile_it, "--shape", "img=4,1,28,28", code=2)
        self.assertIn("'image', 'label'", done.stderr)
        plan = self.compile("mlp.onnx", "p.weft", 2, 4)
        done = self.weft("explain", plan, "--why", "fc1.wieght_grad", code=2)
        self.assertIn("did you mean 'fc1.weight_grad'?", done.stderr)
        self.assertIn("gradients: fc3.weight_grad, fc3.bias_grad,", done.stderr)

    def test_options_of_a_model_on_a_plan(self):
        plan = self.compile("mlp.onnx", "p.weft", 2, 4)
        done = self.weft("run", plan, "-n", 2, "--data", "x", "--bucket", "one", code=2)
        self.assertIn("is a plan: --bucket applies only to a model that is compiled", done.stderr)

    def test_profiles_are_read_and_written_by_different_options(self):
        text = self.weft("help", "run").stdout
        self.assertIn("--write-profile P.json", text)
        self.assertIn("--profile P.json", text)
        done = self.weft("run", MODELS / "mlp.onnx", "-n", 1, "--batch", 4, "--data", "x", "--profile", "none.json", code=2)
        self.assertIn("none.json", done.stderr)

    def test_verify_takes_a_plan(self):
        done = self.weft("verify", MODELS / "mlp.onnx", code=2)
        self.assert_one_line(done.stderr)
        self.assertIn("not a plan; weft verify takes a PLAN.weft", done.stderr)

    def test_one_rank_is_singular(self):
        done = self.weft("compile", MODELS / "mlp.onnx", "-o", "p.weft", "--batch", "4", "-n", 1)
        self.assertIn(": 1 rank, ", done.stdout)
        self.assertTrue(self.weft("algos", "-n", 1, "--op", "reduce").stdout.startswith("reduce, 1 rank\n"))


class Settings(Case):
    def test_misspelt_variables(self):
        done = self.weft("ops", env={"WEFT_PROGRES": "x"})
        self.assertEqual(done.stderr, "weft: warning: unknown variable WEFT_PROGRES: did you mean WEFT_PROGRESS?\n")
        done = self.weft("bench", "all_reduce", "-n", 2, "--max", 64, env={"WEFT_TREADS": "1"})
        self.assertEqual(done.stderr.count("WEFT_TREADS"), 1)  # once for all ranks
        self.assertEqual(self.weft("ops", env={"WEFT_SOMETHING_ELSE": "1", "WEFT_RANK": "0"}).stderr, "")

    def test_invalid_values(self):
        for name, value, words in (("WEFT_ISA", "neon", "expected 'auto', 'portable', 'avx2' or 'avx512'"),
                                   ("WEFT_CHECK", "x", "expected 'off', 'results' or 'results:N'"),
                                   ("WEFT_CHECK", "results:0", "expected 'off', 'results' or 'results:N'"),
                                   ("WEFT_TIMEOUT", "-1", "expected a number of at least 0"),
                                   ("WEFT_SOCKETS", "9", "expected a whole number between 1 and 8"),
                                   ("WEFT_TRANSPORT", "shm,", "expected 'auto', or one or more of")):
            done = self.weft("bench", "all_reduce", "--max", 64, env={name: value}, code=2)
            self.assertIn(f"invalid value '{value}' for {name}: {words}", done.stderr)
            self.weft("info", env={name: value}, code=2)


class Samples(Case):
    def test_scripts_can_be_started(self):
        for path in (SOURCE / "samples").rglob("*"):
            if path.is_file() and path.suffix in (".py", ".sh") and path.read_bytes()[:2] == b"#!":
                self.assertTrue(path.stat().st_mode & stat.S_IXUSR, path)


if __name__ == "__main__":
    support.main()
