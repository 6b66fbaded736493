// Package quicgo looks at the broker at BROKER_QUIC as a client of quic-go does.
package quicgo

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

const clients = 600
const atOnce = 50

// MQTT 3.1.1, clean session, no user: the broker refuses it.
var connect = []byte{0x10, 0x0d, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 60, 0, 1, 'q'}

// refusal connects and returns what the broker has answered, read after a while.
func refusal(after time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	at := strings.TrimPrefix(os.Getenv("BROKER_QUIC"), "quic://")
	trust := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"mqtt"}}
	connection, err := quic.DialAddr(ctx, at, trust, nil)
	if err != nil {
		return nil, err
	}
	defer connection.CloseWithError(0, "")
	stream, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := stream.Write(connect); err != nil {
		return nil, err
	}
	time.Sleep(after)
	answer := make([]byte, 4)
	_, err = io.ReadFull(stream, answer)
	return answer, err
}

// quic-go drops what was not read when the connection is closed: the broker leaves that to the client.
func TestEveryRefusalArrives(t *testing.T) {
	var mutex sync.Mutex
	var failed []error
	places := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for number := range clients {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			after := time.Duration(number%2) * 100 * time.Millisecond
			answer, err := refusal(after)
			if err == nil && (!bytes.HasPrefix(answer, []byte{0x20, 2, 0}) || answer[3] == 0) {
				err = errors.New("no refusal")
			}
			if err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				failed = append(failed, err)
			}
		})
	}
	running.Wait()
	if len(failed) > 0 {
		t.Errorf("%d of %d refusals did not arrive, the first: %v", len(failed), clients, failed[0])
	}
}
