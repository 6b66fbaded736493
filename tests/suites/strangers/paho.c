/* Eclipse Paho for C as a client that follows lines: `HOST PORT VERSION ID CLEAN [WILL]`; see suite.py. */

#include <MQTTClient.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const long PATIENCE = 20000;
static int v5;

static void fail(const char *step, int code) {
    fprintf(stderr, "%s: %d %s\n", step, code, MQTTClient_strerror(code));
    exit(1);
}

static void add(MQTTProperties *to, int identifier, int number, char *text, int length) {
    MQTTProperty one = {.identifier = identifier};
    if (text) {
        one.value.data.data = text;
        one.value.data.len = length;
    } else if (identifier == MQTTPROPERTY_CODE_PAYLOAD_FORMAT_INDICATOR) {
        one.value.byte = number;
    } else {
        one.value.integer4 = number;
    }
    int code = MQTTProperties_add(to, &one);
    if (code)
        fail("property", code);
}

static void print_properties(MQTTProperties *all) {
    char *comma = "";
    for (int at = 0; at < all->count; at++) {
        MQTTProperty *one = &all->array[at];
        MQTTLenString *text = &one->value.data, *value = &one->value.value;
        switch (one->identifier) {
        case MQTTPROPERTY_CODE_PAYLOAD_FORMAT_INDICATOR:
            printf("%sformat=%d", comma, one->value.byte);
            break;
        case MQTTPROPERTY_CODE_MESSAGE_EXPIRY_INTERVAL:
            printf("%sexpiry=%u", comma, one->value.integer4);
            break;
        case MQTTPROPERTY_CODE_CONTENT_TYPE:
            printf("%stype=%.*s", comma, text->len, text->data);
            break;
        case MQTTPROPERTY_CODE_RESPONSE_TOPIC:
            printf("%sresponse=%.*s", comma, text->len, text->data);
            break;
        case MQTTPROPERTY_CODE_CORRELATION_DATA:
            printf("%scorrelation=", comma);
            for (int byte = 0; byte < text->len; byte++)
                printf("%02x", (unsigned char)text->data[byte]);
            break;
        case MQTTPROPERTY_CODE_USER_PROPERTY:
            printf("%suser=%.*s:%.*s", comma, text->len, text->data, value->len, value->data);
            break;
        default:
            continue;
        }
        comma = ",";
    }
    puts(*comma ? "" : "-");
}

static int arrived(void *context, char *topic, int length, MQTTClient_message *message) {
    (void)context, (void)length;
    flockfile(stdout);
    printf("message %d %d ", message->qos, message->retained);
    for (int at = 0; at < message->payloadlen; at++)
        printf("%02x", ((unsigned char *)message->payload)[at]);
    printf(" ");
    print_properties(&message->properties);
    fflush(stdout);
    funlockfile(stdout);
    MQTTClient_freeMessage(&message);
    MQTTClient_free(topic);
    return 1;
}

static void publish(MQTTClient client, char *topic, int qos, int retain, char *hex, int properties) {
    MQTTClient_message message = MQTTClient_message_initializer;
    MQTTClient_deliveryToken token;
    message.payloadlen = strlen(hex) / 2;
    unsigned char *payload = message.payload = malloc(message.payloadlen);
    for (int at = 0; at < message.payloadlen; at++)
        sscanf((char[]){hex[2 * at], hex[2 * at + 1], 0}, "%2hhx", &payload[at]);
    message.qos = qos;
    message.retained = retain;
    if (properties) {
        add(&message.properties, MQTTPROPERTY_CODE_PAYLOAD_FORMAT_INDICATOR, 1, NULL, 0);
        add(&message.properties, MQTTPROPERTY_CODE_MESSAGE_EXPIRY_INTERVAL, 3600, NULL, 0);
        add(&message.properties, MQTTPROPERTY_CODE_CONTENT_TYPE, 0, "text/plain", 10);
        add(&message.properties, MQTTPROPERTY_CODE_RESPONSE_TOPIC, 0, "answer", 6);
        add(&message.properties, MQTTPROPERTY_CODE_CORRELATION_DATA, 0, "\0\377", 2);
        MQTTProperty user = {.identifier = MQTTPROPERTY_CODE_USER_PROPERTY};
        user.value.data.data = "a";
        user.value.data.len = user.value.value.len = 1;
        for (char *value = "1\0002"; value; value = *value == '1' ? value + 2 : NULL) {
            user.value.value.data = value;
            MQTTProperties_add(&message.properties, &user);
        }
    }
    int code;
    if (v5) {
        MQTTResponse response = MQTTClient_publishMessage5(client, topic, &message, &token);
        code = response.reasonCode;
        MQTTResponse_free(response);
    } else {
        code = MQTTClient_publishMessage(client, topic, &message, &token);
    }
    if (!code || code == MQTTREASONCODE_NO_MATCHING_SUBSCRIBERS)
        code = MQTTClient_waitForCompletion(client, token, PATIENCE);
    if (code)
        fail("publish", code);
    MQTTProperties_free(&message.properties);
    free(payload);
    puts("published");
}

int main(int count, char **words) {
    if (count < 6)
        return 2;
    char url[200];
    snprintf(url, sizeof url, "tcp://%s:%s", words[1], words[2]);
    v5 = !strcmp(words[3], "5.0");
    int clean = *words[5] == '1';
    MQTTClient client;
    MQTTClient_createOptions create = MQTTClient_createOptions_initializer;
    create.MQTTVersion = v5 ? MQTTVERSION_5 : MQTTVERSION_3_1_1;
    int code = MQTTClient_createWithOptions(&client, url, words[4], MQTTCLIENT_PERSISTENCE_NONE, NULL, &create);
    if (!code)
        code = MQTTClient_setCallbacks(client, NULL, NULL, arrived, NULL);
    if (code)
        fail("create", code);
    MQTTClient_connectOptions connect4 = MQTTClient_connectOptions_initializer;
    MQTTClient_connectOptions connect5 = MQTTClient_connectOptions_initializer5;
    MQTTClient_connectOptions options = v5 ? connect5 : connect4;
    MQTTClient_willOptions will = MQTTClient_willOptions_initializer;
    if (count > 6) {
        will.topicName = words[6];
        will.message = "gone";
        will.qos = 1;
        options.will = &will;
    }
    if (v5) {
        MQTTProperties properties = MQTTProperties_initializer;
        add(&properties, MQTTPROPERTY_CODE_SESSION_EXPIRY_INTERVAL, clean ? 0 : 60, NULL, 0);
        options.cleanstart = clean;
        MQTTResponse response = MQTTClient_connect5(client, &options, &properties, NULL);
        code = response.reasonCode;
        MQTTResponse_free(response);
    } else {
        options.cleansession = clean;
        code = MQTTClient_connect(client, &options);
    }
    if (code)
        fail("connect", code);
    /* In 5.0 it does not return the flag. */
    puts(v5 ? "connected -" : options.returned.sessionPresent ? "connected 1" : "connected 0");
    fflush(stdout);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        char *verb = strtok(line, " \n"), *topic = strtok(NULL, " \n"), *qos = strtok(NULL, " \n");
        char *retain = strtok(NULL, " \n"), *payload = strtok(NULL, " \n"), *properties = strtok(NULL, " \n");
        if (!strcmp(verb, "leave"))
            break;
        if (!strcmp(verb, "pub")) {
            publish(client, topic, atoi(qos), *retain == '1', payload, *properties == '1');
        } else if (v5) {
            MQTTResponse response = MQTTClient_subscribe5(client, topic, atoi(qos), NULL, NULL);
            printf("subscribed %d\n", response.reasonCode);
            MQTTResponse_free(response);
        } else {
            code = MQTTClient_subscribe(client, topic, atoi(qos));
            printf("subscribed %d\n", code ? code : atoi(qos));
        }
        fflush(stdout);
    }
    return MQTTClient_disconnect(client, 1000);
}
