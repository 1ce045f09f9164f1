"""Configs of run folders that write class paths in other ways, misuse keys, or unfold to more than they look like."""

import copy
import re
from collections.abc import Iterator

import yaml
from malicious_configs import Config, Content, replaced, slots


def twisted(config: Config) -> Iterator[tuple[str, Content]]:
    """Other ways to write a class path, and keys that a parser might treat as more than a key."""
    evil = {"class_path": "helper.Evil"}
    forms = [
        "helper.Evil\n", " helper.Evil", "helper.Evil()", "helper .Evil", "helper..Evil", ".helper.Evil",
        "..helper.Evil", "helper", "Evil", "Soft", "main", "system", "vision_attn", "vision_attn.",
        "vision_attn.models", "vision_attn.models.ram", "ⅴision_attn.x", "os.syste\u1d50", "__main__.x",
        "vision_attn.attention.soft.Soft;helper.Evil", "vision_attn.attention.soft.Soft.__init__",
        "vision_attn.attention.soft.Soft.__subclasses__", "vision_attn.attention.soft.nn.Module",
        "vision_attn.attention.__builtins__", "vision_attn.attention.soft.__builtins__.eval",
        "vision_attn.attention.soft.__loader__", "@evil.yaml", "evil.yaml", "{class_path: helper.Evil}",
        "class_path: helper.Evil", '{"class_path": "helper.Evil", "init_args": {}}', "[helper.Evil]",
        "!!python/object:helper.Evil {}", "!!python/object/apply:os.system ['touch OUTSIDE/canary']", "file:evil.yaml",
        "-", "", "a." * 2000 + "b", "a" * 4000 + ".b", 5, 5.5, True, [], [evil], {}, {"init_args": {}},
        {"class_path": None}, {"class_path": ["helper.Evil"]}, {"class_path": evil},
        {"class_path": {"class_path": evil}}, {"class_path": 5}, evil | {"init_args": "{}"}, evil | {"init_args": []},
        evil | {"init_args": None}, evil | {"__path__": "evil.yaml"}, {"config": "evil.yaml"},
        {"__path__": "evil.yaml"}, {"_class": "helper.Evil"}, {"__class__": "helper.Evil"},
        {"class_path": "vision_attn.attention.soft.Soft", "init_args": {"class_path": "helper.Evil"}},
        {"class_path": "vision_attn.attention.soft.Soft", "init_args": {"__call__": "helper.Evil"}},
        {"class_path": "vision_attn.attention.soft.Soft", "init_args": {"args": ["x"], "kwargs": {"x": evil}}},
        {"class_path": "vision_attn.attention.soft.Soft", "dict_kwargs": {"x": evil}},
        {"class_path": "vision_attn.attention.soft.Soft", "init_args": {}, "dict_kwargs": {"x": evil}},
        {"class_path": "torch.nn.Linear", "init_args": {"in_features": 10**5, "out_features": 10**5, "device": "cpu"}},
        {"class_path": "torch.nn.modules.linear.Linear", "init_args": {"out_features": 4, "dtype": "helper.Evil"}},
        {"class_path": "torch.nn.ReLU.helper.Evil"}, {"hidden_size": evil}, evil | {"extra": 1},
    ]  # fmt: skip
    for path in slots(config):
        for form in forms:
            yield f"{'.'.join(path)}: {form!r:.60}", replaced(config, path, form)
        twisted = copy.deepcopy(config)
        node = twisted
        for key in path:
            node = node[key]
        node["init_args"] = node.get("init_args", {}) | {"a.class_path": "helper.Evil", "b+": [evil], "helper.Evil": 1}
        yield f"dotted keys in {'.'.join(path)}", twisted


def top_level(config: Config) -> Iterator[tuple[str, Content]]:
    """Keys beside `task` and `data`, and files that are no config."""
    text, evil = yaml.safe_dump(config), {"class_path": "helper.Evil"}
    tops: list[dict] = [
        {"config": "evil.yaml"}, {"task.model": evil}, {"data.class_path": "helper.Evil"}, {"task+": [evil]},
        {"task.init_args.model.class_path": "helper.Evil"}, {"print_config": True}, {"help": True}, {"format": evil},
        {"format": "1"}, {"format": [1]}, {"format": 10**4000}, {"__default_config__": "evil.yaml"},
        {"__path__": "evil.yaml"}, {"--task": evil}, {"": 1}, {"run": []}, {"run": {"seed": "x"}},
        {"run": {"seed": 2**80}}, {"run": {"seed": [1]}}, {"run": "x"}, {"optimizer": evil}, {"schedule": evil},
        {"optimizer": {"class_path": "os.system"}}, {"task": None}, {"data": None}, {"task": {}}, {"data": []},
        {"task": "evil.yaml"}, {"data": "evil.yaml"}, {"task": text},
    ]  # fmt: skip
    for top in tops:
        yield f"top level {top!r:.60}", config | top
    for path in slots(config):
        removed = re.sub(r"class_path: \S+", "class_path: !!python/name:os.system", text, count=1)
        yield f"a tag in {path[-1]}", removed
        break
    for body in (
        "", "null", "- 1", "x", "5", "\x00", "\ufeff" + text, text + "\n---\n" + text, "%YAML 9.9\n---\n" + text,
        "!!map " + text, "!!python/object/apply:os.system ['touch OUTSIDE/canary']",
        "!!python/object/new:helper.Evil {}", "? [a]\n: b\n" + text, "1: 2\n" + text, "null: 2\n" + text,
        "2020-01-01: 2\n" + text, "a: !!binary x", "task: !!set {a, b}", "<<: 5\n" + text,
        "task: !!timestamp 2020-99-99", "task: !!int x", "task: !!float ''", "run: {seed: 2020-01-01}\n" + text,
        "task: \"\\ud800\"",
    ):  # fmt: skip
        yield f"file {body!r:.40}", body


def bombs(config: Config) -> Iterator[tuple[str, Content]]:
    """Small files that unfold into large ones, and files that take a parser long."""
    text = yaml.safe_dump(config)

    def unfolding(first: str, form: str, times: int = 9) -> str:
        lines = [f"a0: &a0 {first}"]
        lines += [f"a{n}: &a{n} {form.format(','.join([f'*a{n - 1}'] * 9))}" for n in range(1, times + 1)]
        return "\n".join(lines)

    deep = "x"
    for _ in range(60):
        deep = f"{{class_path: vision_attn.models.show_attend_tell.ShowAttendTell, init_args: {{score: {deep}}}}}"
    yield from {
        "aliases": unfolding("[1,1,1]", "[{}]"),
        "aliases of mappings": unfolding("{x: 1}", "{{b: [{}]}}"),
        "merges": unfolding("{x: 1}", "{{<<: [{}]}}"),
        "aliases in a task": f"{unfolding('[1,1,1]', '[{}]')}\ntask: *a9\n{text}",
        "long text many times": f"a: &a '{'x' * 4000}'\ntask: [{'*a,' * 9000}]",
        "itself": "task: &a [*a]",
        "itself in a mapping": f"task: &a {{class_path: x, init_args: *a}}\n{text}",
        "itself by merging": "task: &a {<<: *a}",
        "a chain": "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000)),
        "open lists": "task: " + "[" * 200_000,
        "open mappings": "task: " + "{a: " * 50_000,
        "open keys": "? " * 100_000,
        "open items": "- " * 100_000,
        "indented": "\n".join(" " * n + "a:" for n in range(700)),
        "a list of numbers": f"task: [{'1,' * 130_000}1]",
        "many keys": "\n".join(f"k{n}:" for n in range(25_000)),
        "newlines": f"{text}{chr(10) * 200_000}",
        "newlines in a value": f"task: '{chr(10) * 200_000}'",
        "spaces in a value": f"task: {{class_path: 'x{' ' * 100_000}x'}}",
        "quotes for a search": f'task: "{chr(92)}n - {"Parser key " * 10_000}"',
        "a long word": f"task: {'x' * 100_000}",
        "a long key": f"{'x' * 100_000}: 1",
        "a long class path": f"task: {'a.' * 50_000}b",
        "a long number": f"task: {'1' * 100_000}",
        "sexagesimal": f"task: {'1:' * 100_000}1",
        "a long comment": f"#{'x' * 250_000}\n{text}",
        "too large": f"#{'x' * 300_000}\n{text}",
        "anchors": "".join(f"a{n}: &a{n} 1\n" for n in range(20_000)),
        "directives": "%TAG !x! tag:x\n" * 15_000,
        "nested classes": f"data: {{class_path: vision_attn.data.scenes.scenes.Scenes}}\ntask: {deep}",
    }.items()
