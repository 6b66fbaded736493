// broker runs gomqtt's broker, of MQTT 3.1.1 and 3.1, with one user. It prints where it listens, then `ready`.
//
//	broker CERT KEY USER PASSWORD
package main

import (
	"crypto/tls"
	"fmt"
	"log"
	"os"

	"github.com/256dpi/gomqtt/broker"
	"github.com/256dpi/gomqtt/transport"
)

func main() {
	pair, err := tls.LoadX509KeyPair(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	launcher := transport.NewLauncher(transport.LaunchConfig{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
	})
	backend := broker.NewMemoryBackend()
	backend.Credentials = map[string]string{os.Args[3]: os.Args[4]}
	engine := broker.NewEngine(backend)
	for launch, scheme := range map[string]string{"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"} {
		server, err := launcher.Launch(launch + "://127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		engine.Accept(server)
		fmt.Printf("%s://%s\n", scheme, server.Addr())
	}
	fmt.Println("ready")
	select {}
}
