// Eclipse Paho's two clients for Go, for MQTT 3.1.1 and for 5.0, as one that follows lines:
// `HOST PORT VERSION ID CLEAN [WILL]`; see suite.py.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/eclipse/paho.mqtt.golang"
)

const patience = 20 * time.Second

type client interface {
	subscribe(topic string, qos byte) (byte, error)
	publish(topic string, qos byte, retain bool, payload []byte, properties bool) error
	leave() error
}

func check(step string, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, step, err)
		os.Exit(1)
	}
}

func number(truth bool) int {
	if truth {
		return 1
	}
	return 0
}

type v4 struct{ mqtt.Client }

func done(token mqtt.Token) error {
	if !token.WaitTimeout(patience) {
		return os.ErrDeadlineExceeded
	}
	return token.Error()
}

func connect4(address, id string, clean bool, will string) (client, bool, error) {
	options := mqtt.NewClientOptions().AddBroker("tcp://" + address).SetClientID(id)
	options.SetCleanSession(clean).SetAutoReconnect(false).SetProtocolVersion(4)
	options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) {
		fmt.Printf("message %d %d %x -\n", message.Qos(), number(message.Retained()), message.Payload())
	})
	if will != "" {
		options.SetWill(will, "gone", 1, false)
	}
	connected := v4{mqtt.NewClient(options)}
	token := connected.Connect()
	err := done(token)
	return connected, err == nil && token.(*mqtt.ConnectToken).SessionPresent(), err
}

func (c v4) subscribe(topic string, qos byte) (byte, error) {
	token := c.Subscribe(topic, qos, nil)
	err := done(token)
	return token.(*mqtt.SubscribeToken).Result()[topic], err
}

func (c v4) publish(topic string, qos byte, retain bool, payload []byte, _ bool) error {
	return done(c.Publish(topic, qos, retain, payload))
}

func (c v4) leave() error {
	c.Disconnect(1000)
	return nil
}

type v5 struct{ *paho.Client }

func connect5(address, id string, clean bool, will string) (client, bool, error) {
	link, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, false, err
	}
	connected := v5{paho.NewClient(paho.ClientConfig{
		Conn:          link,
		PacketTimeout: patience,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(got paho.PublishReceived) (bool, error) {
			one := got.Packet
			fmt.Printf("message %d %d %x %s\n", one.QoS, number(one.Retain), one.Payload, fields(one.Properties))
			return true, nil
		}},
	})}
	expiry := uint32(60)
	if clean {
		expiry = 0
	}
	connect := &paho.Connect{ClientID: id, CleanStart: clean, KeepAlive: 30,
		Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry}}
	if will != "" {
		connect.WillMessage = &paho.WillMessage{Topic: will, Payload: []byte("gone"), QoS: 1}
		connect.WillProperties = &paho.WillProperties{}
	}
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connack, err := connected.Connect(within, connect)
	return connected, err == nil && connack.SessionPresent, err
}

func fields(properties *paho.PublishProperties) string {
	var has []string
	if properties.PayloadFormat != nil {
		has = append(has, fmt.Sprintf("format=%d", *properties.PayloadFormat))
	}
	if properties.MessageExpiry != nil {
		has = append(has, fmt.Sprintf("expiry=%d", *properties.MessageExpiry))
	}
	if properties.ContentType != "" {
		has = append(has, "type="+properties.ContentType)
	}
	if properties.ResponseTopic != "" {
		has = append(has, "response="+properties.ResponseTopic)
	}
	if properties.CorrelationData != nil {
		has = append(has, fmt.Sprintf("correlation=%x", properties.CorrelationData))
	}
	for _, user := range properties.User {
		has = append(has, "user="+user.Key+":"+user.Value)
	}
	if has == nil {
		return "-"
	}
	return strings.Join(has, ",")
}

func (c v5) subscribe(topic string, qos byte) (byte, error) {
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	suback, err := c.Subscribe(within, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: qos}}})
	if err != nil {
		return 0x80, err
	}
	return suback.Reasons[0], nil
}

func (c v5) publish(topic string, qos byte, retain bool, payload []byte, properties bool) error {
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message := &paho.Publish{Topic: topic, QoS: qos, Retain: retain, Payload: payload}
	if properties {
		format, expiry := byte(1), uint32(3600)
		message.Properties = &paho.PublishProperties{PayloadFormat: &format, MessageExpiry: &expiry,
			ContentType: "text/plain", ResponseTopic: "answer", CorrelationData: []byte{0, 255},
			User: paho.UserProperties{{Key: "a", Value: "1"}, {Key: "a", Value: "2"}}}
	}
	_, err := c.Publish(within, message)
	return err
}

func (c v5) leave() error {
	return c.Disconnect(&paho.Disconnect{})
}

func main() {
	words := append(os.Args[1:], "")
	connect := connect4
	if words[2] == "5.0" {
		connect = connect5
	}
	client, present, err := connect(words[0]+":"+words[1], words[3], words[4] == "1", words[5])
	check("connect", err)
	fmt.Println("connected", number(present))
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadString('\n')
		check("read", err)
		words := strings.Fields(line)
		if words[0] == "leave" {
			check("leave", client.leave())
			return
		}
		qos, err := strconv.ParseUint(words[2], 10, 8)
		check("QoS", err)
		if words[0] == "sub" {
			granted, err := client.subscribe(words[1], byte(qos))
			check("subscribe", err)
			fmt.Println("subscribed", granted)
			continue
		}
		payload, err := hex.DecodeString(words[4])
		check("payload", err)
		check("publish", client.publish(words[1], byte(qos), words[3] == "1", payload, words[5] == "1"))
		fmt.Println("published")
	}
}
