"""Chat templates: rendered as `transformers` does, refusals told, the sandbox shut."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import FormatError, PromptError, UnsupportedError
from flexinfer.formats.gguf import open_gguf
from flexinfer.tokenizer import ChatTemplate, load_chat_template, load_tokenizer
from tokenizer_metadata import byte_pairs

LLAMA_MANNER = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- "<|system|>Today: " + date_string + "\\n" + (system or "") + eos_token }}
{%- for message in messages %}
    {%- if message.content is mapping %}{% continue %}{% endif %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}
    {%- if loop.index == 40 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""
GEMMA_MANNER = """\
{{ bos_token }}{% set ns = namespace(last='') %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception("Conversation roles must alternate user/assistant") }}
    {% endif %}
    {% set ns.last = message['role'] %}
<start_of_turn>{{ 'model' if ns.last == 'assistant' else ns.last }}
{{ message['content'] | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}"""
GENERATION = (
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}"
)
MESSAGES = [
    {"role": "user", "content": " Wie heißt <du> & 'ich'? 你好 🙂 "},
    {"role": "assistant", "content": "Ich\n\nheiße…"},
    {"role": "user", "content": "Gut."},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"a": "<b>"}}}]


def reference(source: str, **extra: Any) -> str:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    rendered = tokenizer.apply_chat_template(
        chat_template=source, tokenize=False, **({"add_generation_prompt": True} | extra)
    )
    assert isinstance(rendered, str)
    return rendered


@pytest.mark.parametrize("source", [LLAMA_MANNER, GEMMA_MANNER, GENERATION])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendered_as_transformers_does(source: str, add_generation_prompt: bool) -> None:
    ours = ChatTemplate(source, "<s>", "</s>").render(MESSAGES, add_generation_prompt)
    assert ours == reference(
        source, conversation=MESSAGES, add_generation_prompt=add_generation_prompt
    )


def test_further_variables_reach_the_template() -> None:
    template = ChatTemplate(LLAMA_MANNER, "<s>", "</s>")
    ours = template.render(MESSAGES, tools=TOOLS, date_string="1 Jan 2030")
    assert ours == reference(
        LLAMA_MANNER, conversation=MESSAGES, tools=TOOLS, date_string="1 Jan 2030"
    )
    assert '"größe"' in ours and '"<b>"' in ours and "Today: 1 Jan 2030" in ours


def test_json_is_not_escaped_for_html() -> None:
    source = "{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}"
    ours = ChatTemplate(source, "", "").render([{"z": "<é>", "a": None}])
    assert ours == '{"a":null,"z":"<é>"}'


def test_todays_date() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    ours = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", "", "").render([])
    assert before <= ours <= datetime.now().strftime("%Y-%m-%d")


def test_a_real_template_and_its_tokens(smollm_path: Path) -> None:
    metadata = open_gguf(smollm_path).metadata
    tokenizer = load_tokenizer(metadata)
    prompt = load_chat_template(metadata, tokenizer).render(MESSAGES)
    assert prompt == reference(metadata["tokenizer.chat_template"], conversation=MESSAGES)
    ids = tokenizer.encode(prompt)
    assert ids[0] == 1 and ids.count(1) == 5 and ids.count(2) == 4  # <|im_start|>, <|im_end|>


def test_a_template_that_writes_bos_gives_one() -> None:
    metadata = byte_pairs("llama-bpe") | {"tokenizer.chat_template": GEMMA_MANNER}
    tokenizer = load_tokenizer(metadata)
    prompt = load_chat_template(metadata, tokenizer).render(MESSAGES)
    assert prompt.startswith("<bos>")
    assert tokenizer.encode(prompt).count(tokenizer.bos_id) == 1


def test_the_templates_own_refusal_is_told() -> None:
    template = ChatTemplate(GEMMA_MANNER, "<s>", "</s>")
    with pytest.raises(PromptError, match="Conversation roles must alternate user/assistant"):
        template.render([{"role": "system", "content": "Be brief."}])


@pytest.mark.parametrize("source", ["{{ messages[0].content + 1 }}", "{{ messages[9].content.x }}"])
def test_a_template_that_fails_is_told(source: str) -> None:
    with pytest.raises(PromptError, match=r"failed on these messages: (TypeError|UndefinedError)"):
        ChatTemplate(source, "", "").render(MESSAGES)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a", "{% nosuchtag %}", "{{ 1 | nosuchfilter }}"]
)
def test_a_faulty_template_is_refused(source: str) -> None:
    with pytest.raises(FormatError, match=r"template .* is faulty, line 1"):
        ChatTemplate(source, "", "")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises((FormatError, PromptError)):
        ChatTemplate(source, "", "").render(MESSAGES)


def test_format_strings_do_not_reach_inside() -> None:
    source = "{{ '[{0.__class__}]'.format(messages) }}"
    assert ChatTemplate(source, "", "").render(MESSAGES) == "[]"


def test_messages_are_not_changed_by_a_template() -> None:
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(FormatError, match="may not"):
        ChatTemplate("{{ messages[0].update(content='b') }}", "", "").render(messages)
    assert messages == [{"role": "user", "content": "a"}]


def test_a_model_without_a_template_names_raw() -> None:
    metadata = byte_pairs()
    with pytest.raises(UnsupportedError, match="no chat template") as caught:
        load_chat_template(metadata, load_tokenizer(metadata))
    assert caught.value.hint and "--raw" in caught.value.hint


def test_jinja_is_imported_only_to_chat() -> None:
    program = (
        "import sys, flexinfer.tokenizer as t; assert 'jinja2' not in sys.modules; "
        "t.ChatTemplate('', '', ''); assert 'jinja2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
