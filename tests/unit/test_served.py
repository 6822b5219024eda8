"""--base_url: generation by a server with OpenAI's interface, which here is a plain fake over real
HTTP.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from eval_inputs import parquet, row

from exgrpo_eval.generate import command as generate_vllm
from exgrpo_eval.generate import served
from exgrpo_eval.reports import report_page
from exgrpo_eval.reports.report_text import hardware


class Fake(BaseHTTPRequestHandler):
    """Answers with the seed in a box; `server.behave` may answer in its stead with a status, or
    change the reply.
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(
            200,
            {
                "object": "list",
                "data": [
                    {"id": name, "object": "model", "root": "/m", "owned_by": "llamacpp"}
                    for name in self.server.models
                ],
            },
        )

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, asked, self.headers["Authorization"]))
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        text = rf"\boxed{{{asked['seed'] % 2}}}"
        spoken = (
            {"message": {"role": "assistant", "content": text}}
            if "messages" in asked
            else {"text": text}
        )
        choice = {"index": 0, "finish_reason": "stop", **spoken}
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        body = {
            "id": "x",
            "object": "y",
            "created": 0,
            "model": asked["model"],
            "choices": [choice],
            "usage": usage,
        }
        status = self.server.behave(len(self.server.asked), choice) or 200
        self.reply(
            status, body if status == 200 else {"error": {"message": f"told off with {status}"}}
        )
        with self.server.lock:
            self.server.now -= 1

    def reply(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After-Ms", "1")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Fake) as running:
        running.models, running.asked, running.lock, running.now, running.most = (
            ["tiny"],
            [],
            threading.Lock(),
            0,
            0,
        )
        running.behave = lambda number, choice: None
        running.url = f"http://127.0.0.1:{running.server_address[1]}/v1"
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def run(server, tmp_path):
    """Evaluate three questions, four samples of each; the rows."""
    file = parquet(tmp_path, [row(text, "1") for text in ("a?", "b?", "c?")])

    def evaluate(*flags):
        output = tmp_path / "out.jsonl"
        command = [
            "--base_url",
            server.url,
            "--input_file",
            str(file),
            "--output_file",
            str(output),
            "--n",
            "4",
        ]
        generate_vllm.main([*command, "--max_tokens", "9", "--top_p", "0.9", *flags])
        return [json.loads(line) for line in output.read_text().splitlines()]

    return evaluate


def failed(run, capsys, *flags):
    with pytest.raises(SystemExit) as stopped:
        run(*flags)
    error = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2
    return error


def test_a_run_asks_for_each_sample_with_its_seed_and_reports(server, run, tmp_path):
    rows = run()
    assert len(rows) == len(server.asked) == 12 and len({row["seed"] for row in rows}) == 12
    assert {(asked["messages"][-1]["content"], asked["seed"]) for _, asked, _ in server.asked} == {
        (row["prompt"], row["seed"]) for row in rows
    }
    path, asked, _ = server.asked[0]
    assert path == "/v1/chat/completions" and asked["model"] == "tiny"
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (0.6, 0.9, 9)
    assert all(row["correct"] == (row["seed"] % 2 == 1) and row["tokens"] == 5 for row in rows)
    assert (tmp_path / "out.report.md").read_text().startswith("# tiny\n") and not (
        tmp_path / "out.jsonl.partial"
    ).exists()
    record = json.loads((tmp_path / "out.run.json").read_text())
    assert (
        record["settings"]["base_url"] == server.url and record["identity"]["served_root"] == "/m"
    )


def test_the_report_names_server_and_engine_without_credentials(server, run, tmp_path):
    address = server.url
    server.url = address.replace("//", "//user:sesame@")
    run()
    record = json.loads((tmp_path / "out.run.json").read_text())
    assert record["server"] == {"address": address, "engine": "llamacpp"}
    assert record["settings"]["base_url"] == address
    texts = [(tmp_path / f"out.report.{suffix}").read_text() for suffix in ("md", "json", "html")]
    assert not any("sesame" in text for text in texts)
    facts = dict(report_page.facts(json.loads(texts[1])))
    assert (facts["server"], facts["engine"]) == (address, "llamacpp")
    assert {"machine of the client", "versions of the client"} <= set(
        facts
    ) and "model sha256" not in facts
    assert hardware(record) is None  # the client's machine generated nothing


def test_a_fixed_wording_goes_to_completions_as_it_is(server, run):
    rows = run("--template", "qwen")
    path, asked, _ = server.asked[0]
    assert path == "/v1/completions" and asked["prompt"].endswith("<|im_start|>assistant\n")
    assert rows[0]["prompt"].startswith("<|im_start|>system") and "messages" not in asked


def test_a_system_message_is_sent_where_it_is_to_stay(server, run):
    run("--remove_system", "False", "--skip_scoring")
    assert [turn["role"] for turn in server.asked[0][1]["messages"]] == ["system", "user"]


def test_what_was_cut_off_is_wrong_and_a_thought_is_kept(server, run):
    server.behave = lambda number, choice: choice.update(
        finish_reason="length" if number % 2 else "stop",
        message={
            "role": "assistant",
            "content": r"\boxed{1}",
            "reasoning_content": r"Is it \boxed{2}?",
        },
    )
    rows = run()
    assert [row["correct"] for row in rows] == [row["finish_reason"] == "stop" for row in rows]
    assert {row["response"] for row in rows} == {
        "<think>\nIs it \\boxed{2}?\n</think>\n\n\\boxed{1}"
    }


def test_no_more_at_a_time_than_asked_for(server, run):
    run("--max_num_seqs", "1")
    assert server.most == 1
    assert [asked["seed"] for _, asked, _ in server.asked] == [
        row["seed"] for row in run("--max_num_seqs", "1")
    ]


def test_a_passing_fault_is_tried_again(server, run):
    server.behave = lambda number, choice: {1: 503, 2: 429, 5: 500}.get(number)
    assert len(run()) == 12 and len(server.asked) == 15


def test_a_lasting_fault_ends_the_run_and_the_same_command_goes_on(server, run, capsys, tmp_path):
    whole = run("--max_num_seqs", "1")
    server.asked.clear()
    server.behave = lambda number, choice: 503 if number > 7 else None
    error = failed(run, capsys, "--max_num_seqs", "1", "--restart")
    assert "told off with 503" in error and error.endswith("the same command continues from here")
    assert len(server.asked) == 8 + served.RETRIES
    server.asked.clear()
    server.behave = lambda number, choice: None
    (tmp_path / "out.jsonl").unlink()
    assert run("--max_num_seqs", "1") == whole and len(server.asked) == 5


def test_a_refused_request_is_not_tried_again(server, run, capsys):
    server.behave = lambda number, choice: 400
    assert "told off with 400" in failed(run, capsys, "--max_num_seqs", "1")
    assert len(server.asked) == 1


def test_a_run_of_another_model_is_not_continued(server, run, capsys):
    run()
    server.models = ["other"]
    assert "served_model=other, was tiny" in failed(run, capsys)


def test_the_key_comes_from_the_environment(server, run, capsys, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    assert "--api_key_env=MY_KEY: no such variable" in failed(
        run, capsys, "--api_key_env", "MY_KEY"
    )
    monkeypatch.setenv("MY_KEY", "sesame")
    run("--api_key_env", "MY_KEY")
    assert {key for _, _, key in server.asked} == {"Bearer sesame"}


def test_which_model(server, run, capsys):
    server.models = ["one", "two"]
    assert "--served_model=None: must be one of one, two" in failed(run, capsys)
    assert "--served_model=three: must be one of one, two" in failed(
        run, capsys, "--served_model", "three"
    )
    run("--served_model", "two")
    assert {asked["model"] for _, asked, _ in server.asked} == {"two"}


def test_no_server(server, run, capsys, monkeypatch):
    monkeypatch.setattr(served, "RETRIES", 0)
    server.url = "http://127.0.0.1:9/v1"
    assert "--base_url=http://127.0.0.1:9/v1: its models cannot be listed" in failed(run, capsys)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--base_url", "localhost:8000"], "--base_url=localhost:8000: must begin with http"),
        (["--model_path", "m"], "--model_path=m: not with --base_url"),
        (["--data_parallel_size", "2"], "--data_parallel_size=2: not with --base_url"),
        (["--grade_only", "f"], "--grade_only"),
    ],
)
def test_flags_that_do_not_go_with_it(flags, complaint, run, capsys):
    assert complaint in failed(run, capsys, *flags)
