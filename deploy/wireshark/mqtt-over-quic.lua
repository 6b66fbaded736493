-- Shows MQTT inside QUIC in Wireshark and tshark 4.0 and later: it gives the data of streams to the dissector
-- of MQTT. Wireshark by itself does so for HTTP/3 alone. docs/guide/wireshark.md says how it is used.
--
-- Streams that begin with something else than an MQTT packet are not understood: a flow of MQTT-next or of
-- mqtt5 has a head of its own (docs/reference/streams.md).
local mqtt = Dissector.get("mqtt")
local by_alpn = DissectorTable.get("quic.proto")
for _, name in ipairs({ "mqtt", "MQTT-next" }) do
    by_alpn:add(name, mqtt)
end
