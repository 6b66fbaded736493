// relay has quic-go as the peer of this project's QUIC: it carries bytes between TCP and QUIC, each stream on a
// connection of its own, and loses one datagram in twenty, in both directions.
//
//	relay server CERT KEY TCP-ADDRESS     a QUIC server before a TCP server
//	relay client QUIC-ADDRESS             a TCP server before a QUIC server
//
// It prints its address.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
)

const lossPercent = 5

// lossy loses what it sends and what it receives.
type lossy struct{ net.PacketConn }

func (l lossy) ReadFrom(bytes []byte) (int, net.Addr, error) {
	for {
		count, from, err := l.PacketConn.ReadFrom(bytes)
		if err != nil || rand.IntN(100) >= lossPercent {
			return count, from, err
		}
	}
}

func (l lossy) WriteTo(bytes []byte, to net.Addr) (int, error) {
	if rand.IntN(100) < lossPercent {
		return len(bytes), nil
	}
	return l.PacketConn.WriteTo(bytes, to)
}

func transport() *quic.Transport {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return &quic.Transport{Conn: lossy{socket}}
}

// join carries bytes both ways until both have ended.
func join(stream *quic.Stream, tcp net.Conn) {
	there := make(chan struct{})
	go func() {
		io.Copy(tcp, stream)
		tcp.(*net.TCPConn).CloseWrite()
		close(there)
	}()
	io.Copy(stream, tcp)
	stream.Close()
	select {
	case <-there:
	case <-time.After(5 * time.Second):
	}
	tcp.Close()
}

func serve(certificate, key, target string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"mqtt"}}
	listener, err := transport().Listen(config, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	for {
		connection, err := listener.Accept(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			stream, err := connection.AcceptStream(context.Background())
			if err != nil {
				return
			}
			tcp, err := net.Dial("tcp", target)
			if err != nil {
				log.Fatal(err)
			}
			join(stream, tcp)
		}()
	}
}

func dial(target string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	at, err := net.ResolveUDPAddr("udp", target)
	if err != nil {
		log.Fatal(err)
	}
	from := transport()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"mqtt"}}
	fmt.Println(listener.Addr())
	for {
		tcp, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			connection, err := from.Dial(context.Background(), at, config, nil)
			if err != nil {
				tcp.Close()
				return
			}
			defer connection.CloseWithError(0, "")
			stream, err := connection.OpenStreamSync(context.Background())
			if err != nil {
				tcp.Close()
				return
			}
			join(stream, tcp)
		}()
	}
}

func main() {
	switch {
	case len(os.Args) == 5 && os.Args[1] == "server":
		serve(os.Args[2], os.Args[3], strings.TrimPrefix(os.Args[4], "mqtt://"))
	case len(os.Args) == 3 && os.Args[1] == "client":
		dial(strings.TrimPrefix(os.Args[2], "quic://"))
	default:
		log.Fatal("relay server CERT KEY TCP-ADDRESS | relay client QUIC-ADDRESS")
	}
}
