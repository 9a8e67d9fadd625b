"""Ask a folder of documents, offline: python examples/rag.py FOLDER "QUESTION"."""

import sys

from langchain_core.runnables import RunnableLambda, RunnableParallel

import foveate
from foveate.langchain import FoveateRetriever

folder, question = sys.argv[1:3]
with foveate.open("rag.fov", create=True) as ix:
    ix.add(folder, progress=True)  # what is unchanged since the last time is skipped
    chain = RunnableParallel(
        answer=RunnableLambda(ix.ask),
        documents=FoveateRetriever(engine=ix, k=3),
    )
    found = chain.invoke(question)
    print(found["answer"].text)
    for c in found["answer"].citations:
        print(f"[{c.marker}] {c.passage.source.name}, characters {c.span}: {c.quote!r}")
    print("See also:", *(d.metadata["foveate"]["label"] for d in found["documents"]))
