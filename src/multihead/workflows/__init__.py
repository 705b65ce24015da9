"""The jobs people come for; each is one command and one Python call."""
