from foveate.pipeline.langchain import FoveateCompressor as FoveateCompressor
from foveate.pipeline.langchain import FoveateEmbeddings as FoveateEmbeddings
from foveate.pipeline.langchain import FoveateRetriever as FoveateRetriever
from foveate.pipeline.langchain import FoveateVectorStore as FoveateVectorStore
