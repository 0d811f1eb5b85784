"""A Fairlead app with two services and a pipeline. Run it: fairlead up app:app"""

from fairlead import Call, Fairlead

app = Fairlead()


@app.service(limit=4)
async def write_story(call: Call) -> dict[str, str]:
    """Replace this with a call of your language model. At most four run at once, over all processes."""
    return {"text": f"a story about {call.params['prompt']}"}


@app.service(limit=1)
def draw_picture(call: Call) -> dict[str, str]:
    """Replace this with your image model. A plain function runs in a thread."""
    call.progress(0.5, "half way")
    return {"image": f"a picture of {call.result_of('write_story')['text']}"}


app.pipeline("illustrated_story", ["write_story", "draw_picture"])
