import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.eclipse.paho.client.mqttv3.IMqttDeliveryToken;
import org.eclipse.paho.client.mqttv3.MqttCallback;
import org.eclipse.paho.client.mqttv3.MqttClient;
import org.eclipse.paho.client.mqttv3.MqttConnectOptions;
import org.eclipse.paho.client.mqttv3.MqttMessage;
import org.eclipse.paho.client.mqttv3.persist.MemoryPersistence;

/** Eclipse Paho for Java as a client of suite.py, which has the form of its lines; MQTT 3.1.1 alone. */
class PahoJava {
    public static void main(String[] args) throws Exception {
        MqttClient client = new MqttClient("tcp://" + args[0] + ":" + args[1], args[3], new MemoryPersistence());
        client.setTimeToWait(10_000);
        client.setCallback(new MqttCallback() {
            @Override
            public void connectionLost(Throwable cause) {}

            @Override
            public void deliveryComplete(IMqttDeliveryToken token) {}

            @Override
            public void messageArrived(String topic, MqttMessage message) {
                String payload = HexFormat.of().formatHex(message.getPayload());
                say("message " + message.getQos() + " " + (message.isRetained() ? 1 : 0) + " " + payload + " ");
            }
        });
        MqttConnectOptions options = new MqttConnectOptions();
        options.setMqttVersion(MqttConnectOptions.MQTT_VERSION_3_1_1);
        options.setCleanSession(args[4].equals("1"));
        if (args.length > 5) {
            options.setWill(args[5], "gone".getBytes(), 1, false);
        }
        say("connected " + (client.connectWithResult(options).getSessionPresent() ? 1 : 0));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "sub" -> {
                    int[] granted = client.subscribeWithResponse(words[1], Integer.parseInt(words[2])).getGrantedQos();
                    say("subscribed " + granted[0]);
                }
                case "pub" -> {
                    byte[] payload = HexFormat.of().parseHex(words[4]);
                    client.publish(words[1], payload, Integer.parseInt(words[2]), words[3].equals("1"));
                    say("published");
                }
                case "leave" -> {
                    client.disconnect();
                    // Its threads would go on.
                    System.exit(0);
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
